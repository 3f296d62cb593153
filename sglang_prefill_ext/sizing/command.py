"""`sglang-prefill plan`: replicas or tensor-parallel ranks?"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.sizing.advice import advice
from sglang_prefill_ext.sizing.device import DEVICES, MEASURED, Device, flag_of
from sglang_prefill_ext.sizing.forward import Serving
from sglang_prefill_ext.sizing.model import ModelShape
from sglang_prefill_ext.sizing.parallelism import Forecast, Load, forecasts
from sglang_prefill_ext.sizing.shape import Shape
from sglang_prefill_ext.sizing.work import BFLOAT16_BYTES

_COLUMNS = (
    *("latency", "idle", "parts", "most /s", "GB"),
    *("launch", "arith-\nmetic", "memory", "all-\nreduce"),
)
_NAMES = ", ".join([*DEVICES, MEASURED])
_WHOLE = 1_000
"""Columns in which every table fits."""
_LINK = ("link_gb_s", "link_us")
"""What a single device does not use."""


def plan(
    model: Annotated[Path, typer.Argument(help="Directory with the model's config.json.")],
    gpus: Annotated[int, typer.Option(max=4096, help="Number of equal GPUs.")] = 4,
    shape: Annotated[
        str, typer.Option(help="Shape of a request, in tokens: <query>+<item>x<items>.")
    ] = "120+180x10",
    device: Annotated[str, typer.Option(help=f"One of {_NAMES}.")] = "h100-sxm",
    clients: Annotated[int, typer.Option(max=1_000_000, help="Requests under way at a time.")] = 1,
    rate: Annotated[
        float | None, typer.Option(help="Requests per second, instead of --clients.")
    ] = None,
    weight_bytes: Annotated[
        float,
        typer.Option(min=0.1, max=8, help="Bytes of a weight: 1 for fp8, about 0.5 for four bits."),
    ] = BFLOAT16_BYTES,
    expert_imbalance: Annotated[
        float,
        typer.Option(
            min=1, max=4096, help="Rows of the busiest GPU's experts over the mean, with --ep-size."
        ),
    ] = 1.0,
    tflops: Annotated[
        float | None, typer.Option(help="Peak TFLOP/s, instead of the device's.")
    ] = None,
    gb_s: Annotated[
        float | None, typer.Option(help="Peak GB/s of its memory, instead of the device's.")
    ] = None,
    memory_gb: Annotated[
        float | None, typer.Option(help="GB of memory, instead of the device's.")
    ] = None,
    link_gb_s: Annotated[
        float | None, typer.Option(help="GB/s each way that an all-reduce reaches.")
    ] = None,
    link_us: Annotated[
        float | None, typer.Option(min=0, help="Microseconds of an exchange between GPUs.")
    ] = None,
    launch_ms: Annotated[
        float | None,
        typer.Option(min=0, help="Measured ms of launching a forward; required for cpu."),
    ] = None,
    tokens_per_s: Annotated[
        float | None,
        typer.Option(help="Measured tokens/s of one device; only for cpu, and required there."),
    ] = None,
) -> None:
    """Predict latency and throughput for every way to divide a model over GPUs.

    The exit status is 1 if no way fits the model, or serves the load.
    """
    sizes, wanted, load = ModelShape.from_directory(model), Shape.parse(shape), Load(clients, rate)
    peaks = {"tflops": tflops, "gb_s": gb_s, "memory_gb": memory_gb}
    common = {"launch_ms": launch_ms, "link_gb_s": link_gb_s, "link_us": link_us}
    rates = {"tokens_per_s": tokens_per_s}
    if device == MEASURED:
        _refuse(device, peaks)
        used = _measured(sizes, rates | common, gpus)
    else:
        _refuse(device, rates)
        used = _listed(device, peaks | common)
    serving = Serving(sizes, used, weight_bytes, imbalance=expert_imbalance)
    found = forecasts(serving, gpus, wanted, load)
    console = Console()
    table = table_of(found, f"{wanted}, {_told(load)}, {gpus} x {device}; times in ms")
    Console(width=_WHOLE).print(table)  # a narrow terminal may break lines, but no number
    for each in found:
        if each.why_not:
            console.print(f"{each.parallelism} does not fit: {each.why_not}.", highlight=False)
    console.print(advice(found, load), highlight=False)
    if found[0].why_not or math.isinf(found[0].latency_s):
        raise typer.Exit(1)


def _refuse(device: str, unused: dict[str, float | None]) -> None:
    for name, value in unused.items():
        if value is not None:
            raise ConfigError(
                f"{flag_of(name)} {value:g}: it has no effect with --device {device}; leave it out."
            )


def _measured(model: ModelShape, given: dict[str, float | None], count: int) -> Device:
    needed = [name for name in given if count > 1 or name not in _LINK]
    if missing := [name for name in needed if given[name] is None]:
        raise ConfigError(
            f"--device {MEASURED}: its speed must be given; add {', '.join(map(flag_of, missing))}."
        )
    return Device.measured(model, **{name: x for name, x in given.items() if x is not None})


def _listed(name: str, given: dict[str, float | None]) -> Device:
    if name not in DEVICES:
        raise ConfigError(f"--device {name!r}: use one of {_NAMES}.")
    replaced = {field: value for field, value in given.items() if value is not None}
    return dataclasses.replace(DEVICES[name], **replaced)


def _told(load: Load) -> str:
    if load.rate is not None:
        return f"{load.rate:g} requests/s"
    return f"{load.clients} client{'s' if load.clients > 1 else ''}"


def table_of(found: list[Forecast], title: str) -> Table:
    """One line a parallelism that fits; times in ms, GB of weights on each device.

    The last four are of the part that ends last, and partly at the same time.
    """
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("", no_wrap=True)
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    for each in found:
        if not each.why_not:
            part = each.longest
            terms = (part.launch_s, part.arithmetic_s, part.traffic_s, part.all_reduce_s)
            table.add_row(
                str(each.parallelism),
                *map(_ms, (each.latency_s, each.idle_s)),
                str(each.parts),
                f"{each.most_requests_per_s:.1f}",
                f"{each.weights_gb:.1f}",
                *map(_ms, terms),
            )
    return table


def _ms(seconds: float) -> str:
    """Milliseconds; a dash where a load is more than can be served."""
    ms = seconds * 1e3
    return "-" if math.isinf(ms) else f"{ms:.{2 if ms < 10 else 1}f}"

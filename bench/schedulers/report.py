"""Tables of several schedulers: measured, predicted, and when they would pay off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from bench.drawing import new_table
from bench.schedulers.model import Costs, Machine, gain
from bench.schedulers.session import STOCK, SchedulersResult, name_of

SHARES = (0.1, 0.25, 0.5, 1.0, 2.0)
"""Device time over the scheduler's Python time: the columns of the model's table."""


def measured_table(results: Sequence[SchedulersResult]) -> Table:
    """Return a table with one line per server: rate over that of one scheduler, measured and by
    the model."""
    title = "Rate over that of one scheduler; latencies and costs of a request in ms"
    columns = ("server", "of one", "model", "bound by", "req/s", "a forward")
    times = ("P50", "P99", "python", "device", "front", "all cores")
    table = new_table(title, *columns, *times, left=["server"])
    rates = {each.schedulers: each.requests_per_s for each in results}
    for each in results:
        predicted, joined = each.predicted_per_s, each.requests_per_forward
        cost_ms = (each.python_ms, each.device_ms, each.front_ms, each.cpu_ms)
        table.add_row(
            name_of(each.schedulers),
            f"{each.requests_per_s / rates[1]:.2f}×",
            "-" if predicted is None else f"{predicted / rates[1]:.2f}×",
            each.bound_by or "-",
            f"{each.requests_per_s:,.1f}",
            "-" if joined is None else f"{joined:.2f}",
            *(f"{value:.2f}" for value in (each.p50_ms, each.p99_ms, *cost_ms)),
        )
    return table


def model_table(schedulers: Sequence[int]) -> Table:
    """Return a table of the gain over one scheduler by device time over Python time, if nothing
    else is a limit."""
    title = "Model: gain by device/Python time; kernels in turn, side by side"
    table = new_table(title, "schedulers", *(f"{share:g}" for share in SHARES))
    for number in schedulers:
        table.add_row(str(number), *(_gains(number, share) for share in SHARES))
    return table


def off_by(results: Sequence[SchedulersResult]) -> Iterator[str]:
    """Yield a line for each number of schedulers: how far the model is from the measurement."""
    for each in results:
        if each.schedulers != STOCK and each.predicted_per_s is not None:
            error = each.predicted_per_s / each.requests_per_s - 1
            yield f"{name_of(each.schedulers)}: model {error:+.0%} of measured"


def _gains(schedulers: int, share: float) -> str:
    turn, beside = (_gain(schedulers, share, overlap) for overlap in (0.0, 1.0))
    return f"{turn:.2f}  {beside:.2f}"


def _gain(schedulers: int, share: float, overlap: float) -> float:
    """Of a device that takes a share of the Python time."""
    costs = Costs(python_s=1.0, device_s=share)
    return gain(costs, schedulers, Machine(cores=1, overlap=overlap))

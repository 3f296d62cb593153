"""Set up the choice of blocks: find a model's experts, time the entries of SGLang's tables."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import torch
from sglang.srt.layers.moe.utils import MoeRunnerBackend
from torch import Tensor

from sglang_prefill_ext.border.model.expert_hook import EXPERTS, Call
from sglang_prefill_ext.border.model.expert_layers import (
    computed_with,
    expert_work,
    experts_of,
    rows_by_tma,
    table_of,
    tell_top_k,
    tuned_text,
)
from sglang_prefill_ext.config import MoePolicy, MoeSource, PrefillOnlyConfig
from sglang_prefill_ext.forward.expert_blocks import LEAST_TOKENS, ExpertBlocks, ExpertUse
from sglang_prefill_ext.forward.expert_counts import ExpertCounts
from sglang_prefill_ext.forward.graphs.capture import capture_for
from sglang_prefill_ext.moe.blocks import Entry
from sglang_prefill_ext.moe.policy import BlockTime, Choice, Pair, Times
from sglang_prefill_ext.moe.times import (
    file_of,
    measured_times,
    read_times,
    tried_times,
    write_times,
)
from sglang_prefill_ext.process.user_cache import cache_directory

logger = logging.getLogger(__name__)

_RUNS, _TRIES = 5, 3

_FORMS = (*range(LEAST_TOKENS, LEAST_TOKENS + 16), *range(513, 513 + 16))
"""Numbers of tokens that together launch SGLang's kernel in every form that it can have. Triton
compiles another form if a number of rows is a multiple of 16, and SGLang has another up to 512
rows."""


def set_up_experts(model: Any, device: torch.device, config: PrefillOnlyConfig) -> ExpertUse:
    """Choose the blocks of a model's experts from now on, if SGLang computes them with Triton.

    Every entry that can be chosen is launched in all forms, so that none is compiled while serving.
    """
    layers = experts_of(model)
    if not layers:
        return ExpertUse("no experts")
    if config.moe is MoePolicy.STOCK:
        return ExpertUse("asked for")
    if device.type != "cuda":
        return ExpertUse(f"experts on {device.type} are computed without blocks")
    try:
        tell_top_k(model)
        return _set_up(layers, device, config)
    except Exception as error:
        # Serving does not need this: SGLang's own choice is correct, and at worst slow.
        logger.warning("Experts: SGLang's choice of blocks stays", exc_info=True)
        return ExpertUse(f"{type(error).__name__}: {error}")


@torch.no_grad()
def _set_up(layers: Sequence[Any], device: torch.device, config: PrefillOnlyConfig) -> ExpertUse:
    alike: defaultdict[str, list[tuple[Any, Call]]] = defaultdict(list)
    for layer in computed_with(MoeRunnerBackend.TRITON, layers):
        with EXPERTS.watching() as calls:
            expert_work(layer, LEAST_TOKENS, device)()
        for call in calls:
            alike[described(call)].append((layer, call))
    if not alike:
        return ExpertUse("SGLang computes them in another way than its Triton kernel")
    use = ExpertUse()
    served: dict[int, tuple[ExpertBlocks, int]] = {}
    for shape, group in alike.items():
        layer, call = group[0]
        table = table_of(call)
        entries = table.reachable(LEAST_TOKENS, config.max_forward_tokens)
        times = _times(entries, shape, layer, call, device)
        if not times:
            raise RuntimeError("no entry of SGLang's table can be run")
        experts = len(call.w1)
        counts = ExpertCounts(len(group), experts, device)
        alone = rows_by_tma(call, table)
        if config.moe_source is MoeSource.DEVICE:
            usable = [entry for entry in times if entry not in alone]
            if len(usable) > 1:  # checking any two is enough
                _check_pair((usable[0], usable[1]), layer, device)
        blocks = ExpertBlocks(
            *(len(group), experts, table, config.moe, times, counts),
            source=config.moe_source,
            alone=alone,
            share=layer.num_local_experts / layer.num_experts,
        )
        use.groups.append(blocks)
        served |= {each.w1.data_ptr(): (blocks, at) for at, (_, each) in enumerate(group)}
    EXPERTS.serve(served)
    return use


def described(call: Call) -> str:
    """The shape of a call and how it is quantised: layers with equal texts are alike."""
    return (
        f"w1={tuple(call.w1.shape)}, w2={tuple(call.w2.shape)}, weights={call.w1.dtype}, "
        f"activations={call.dtype}, top_k={call.top_k}, {sorted(call.flags.items())}"
    )


def _times(
    entries: Sequence[Entry], shape: str, layer: Any, call: Call, device: torch.device
) -> Times:
    """Read times from the file of this device, shape and versions, or measure and write them."""

    def seconds_of(entry: Entry, rows: int) -> float:
        with EXPERTS.forcing(entry):
            return _seconds(layer, -(-len(call.w1) * rows // call.top_k), device)

    about = ", ".join(
        [
            torch.cuda.get_device_name(device),
            *(f"{name} {metadata.version(name)}" for name in ("sglang", "torch", "triton")),
            f"{shape}, {entries}, {tuned_text(call)}, {_RUNS} replayed launches",
        ]
    )
    file = file_of(cache_directory("experts"), about)
    times = read_times(file, about)
    if not times:
        times = measured_times(entries, len(call.w1), seconds_of)
        logger.info("Experts: measured %s for %s", times, shape)
        try:
            write_times(file, about, times)
        except OSError as error:
            logger.info("Experts: times cannot be kept in %s: %s", file.parent, error)
    return tried_times(times, lambda entry: _compile(entry, layer, device))


def _compile(entry: Entry, layer: Any, device: torch.device) -> None:
    """Compile all kernels that an entry may launch, or load them from Triton's cache."""
    with EXPERTS.forcing(entry):
        for tokens in _FORMS:
            expert_work(layer, tokens, device)()


def _run_once(choice: Choice, layer: Any, device: torch.device, value: float = 1.0) -> Any:
    """The output of a layer if all hidden states are `value`."""
    with EXPERTS.forcing(choice):
        return expert_work(layer, LEAST_TOKENS, device, value)()


def _check_pair(two: tuple[Entry, Entry], layer: Any, device: torch.device) -> None:
    """Launch two entries together, which compiles the kernel that chooses between them.

    The result of each entry must be that of the entry alone.

    Raises:
        RuntimeError: the numbers differ.
    """
    never, always = BlockTime(1.0, 0.0), BlockTime(0.0, 0.0)
    for taken, times in zip(two, ((always, never), (never, always)), strict=True):
        expected = _run_once(taken, layer, device).hidden_states.clone()
        _run_once(taken, layer, device, value=-2.0)  # overwrite memory that may be used again
        found = _run_once(Pair(*two, *times), layer, device).hidden_states
        limit = 0.01 * float(expected.abs().max())
        if not torch.allclose(found, expected, rtol=0.0, atol=limit):
            raise RuntimeError("two blocks launched together give other numbers than one alone")


def _seconds(layer: Any, tokens: int, device: torch.device) -> float:
    """Seconds of one layer's experts: the mean of a series of launches, in the fastest series.

    A series is replayed as a CUDA graph: the host launches one call in 0.4 ms or more, in which an
    H100 runs the experts of a short forward.
    """
    run = expert_work(layer, tokens, device)

    def series() -> Tensor:
        outputs: list[Tensor] = [run().hidden_states for _ in range(_RUNS)]
        return outputs[-1]

    replay, took_s = capture_for(device)(series), []
    for _ in range(_TRIES):
        torch.cuda.synchronize(device)
        begun_s = time.perf_counter()
        replay()
        torch.cuda.synchronize(device)
        took_s.append((time.perf_counter() - begun_s) / _RUNS)
    return min(took_s)

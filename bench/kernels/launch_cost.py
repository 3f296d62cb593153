"""Time the host's work for one launch of a kernel: ``python -m bench.kernels.launch_cost``.

No GPU is needed: Triton's driver is replaced by one that claims a Hopper GPU and launches nothing.
What remains of a call is Python: our checks and allocations, and Triton's binding of arguments. A
real launch adds the driver's call in C. Times are of one core, the best of several.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import triton
from prefill_kernels.block_choice import Aligned, choose_block
from prefill_kernels.compilation import HOPPER
from prefill_kernels.merge_state import merge_state
from prefill_kernels.shared_prefix_attention import CachedKV, KeyParts, shared_prefix_attention
from triton.runtime.jit import JITFunction

from bench.kernels.bench_shared_prefix_attention import HEAD_DIM, HEADS, KEY_HEADS, tile_plan
from sglang_prefill_ext.layout.tokens import ForwardLayout, GroupSpan

REPETITIONS, CALLS = 25, 100

Launch = Callable[[], object]


@contextmanager
def without_a_gpu() -> Iterator[None]:
    """Let kernels be launched with tensors of the host, on a driver that does nothing."""
    driver = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda _device: 0,
        get_current_target=lambda: HOPPER,
    )
    compiled = SimpleNamespace(
        function=0,
        packed_metadata=(),
        launch_metadata=lambda _grid, _stream, *_arguments: None,
        run=lambda *_arguments: None,
    )

    def compile_nothing(kernel: Any, key: str, *_arguments: object) -> object:
        kernel.device_caches[0][0][key] = compiled
        return compiled

    with (
        patch.object(triton.runtime.driver, "_active", driver),
        patch.object(triton.knobs.runtime, "interpret", True),  # accepts tensors of the host
        patch.object(JITFunction, "_do_compile", compile_nothing),
    ):
        yield


def launches() -> dict[str, Launch]:
    """Return one launch of each kernel of a layer, with the arguments that a layer passes."""
    layout = ForwardLayout((GroupSpan(0, 60, np.full(50, 2, np.int32)),))
    cached_layout = ForwardLayout((GroupSpan(60, 0, np.full(50, 2, np.int32)),))
    q, k, v = _projected(layout.num_tokens)
    cached_q, cached_k, cached_v = _projected(cached_layout.num_tokens)
    slots = torch.arange(60, dtype=torch.int32)
    cached = CachedKV(torch.zeros(64, KEY_HEADS, HEAD_DIM, dtype=q.dtype), v[:64].clone(), slots)
    plan, cached_plan = (tile_plan(each, 32, q.device) for each in (layout, cached_layout))
    scale = HEAD_DIM**-0.5
    part = shared_prefix_attention(q, k, v, plan, scale)
    experts, padded = torch.zeros(256, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    large, small = (Aligned(experts, padded, block, 0.0, 1.0) for block in (128, 64))
    return {
        "shared_prefix_attention": lambda: shared_prefix_attention(q, k, v, plan, scale),
        "shared_prefix_attention, cached": lambda: shared_prefix_attention(
            cached_q, cached_k, cached_v, cached_plan, scale, cached=cached
        ),
        "shared_prefix_attention, prefix": lambda: shared_prefix_attention(
            q, k, v, plan, scale, parts=KeyParts.PREFIX
        ),
        "merge_state": lambda: merge_state(*part, *part, out=part[0], lse=part[1]),
        "block_choice": lambda: choose_block(large, small),
    }


def calls_of_ours(launch: Launch) -> int:
    """Count the Python and C functions that a launch calls outside of Triton."""
    count = depth = 0

    def note(frame: Any, event: str, _argument: object) -> None:
        nonlocal count, depth
        is_triton = f"{triton.__name__}/runtime" in frame.f_code.co_filename
        if event == "call" and (is_triton or depth):
            depth += 1
        elif event == "return" and depth:
            depth -= 1
        elif event in ("call", "c_call") and not depth:
            count += 1

    sys.setprofile(note)
    try:
        launch()
    finally:
        sys.setprofile(None)
    return count - 1  # without the call that removes the profiler


def us_of(launch: Launch) -> list[float]:
    """Microseconds of a launch, and the part of them that Triton takes."""
    bound: list[tuple[JITFunction[Any], tuple[Any, ...], dict[str, Any]]] = []
    run = JITFunction.run

    def note(kernel: JITFunction[Any], *args: Any, **kwargs: Any) -> Any:
        bound.append((kernel, args, kwargs))
        return run(kernel, *args, **kwargs)

    with patch.object(JITFunction, "run", note):
        launch()
    ((kernel, args, kwargs),) = bound
    return _best_us(launch, lambda: kernel.run(*args, **kwargs))


def main() -> None:
    """Print the calls and the times of every launch."""
    torch.set_num_threads(1)
    with without_a_gpu(), torch.inference_mode():
        for name, launch in launches().items():
            whole, triton_us = us_of(launch)
            print(
                f"{name:32} {whole:5.1f} us, of which Triton {triton_us:4.1f} and ours "
                f"{whole - triton_us:4.1f}; calls of ours {calls_of_ours(launch)}"
            )


def _projected(tokens: int) -> list[torch.Tensor]:
    """Queries, keys and values as views of one tensor, the output of a joint projection."""
    heads = [HEADS, KEY_HEADS, KEY_HEADS]
    widths = [number * HEAD_DIM for number in heads]
    joint = torch.zeros(tokens, sum(widths), dtype=torch.bfloat16)
    return [part.view(tokens, -1, HEAD_DIM) for part in torch.split(joint, widths, dim=1)]


def _best_us(*calls: Launch) -> list[float]:
    """Best time of each call in µs; calls take turns, so that other load disturbs all alike."""
    best = [math.inf] * len(calls)
    for _ in range(REPETITIONS):
        for number, call in enumerate(calls):
            start = time.thread_time()
            for _ in range(CALLS):
                call()
            best[number] = min(best[number], (time.thread_time() - start) / CALLS * 1e6)
    return best


if __name__ == "__main__":
    main()

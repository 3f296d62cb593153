"""Time causal_conv against SGLang's kernel, which needs a call for prefixes and one for rows.

Run as ``python -m bench.kernels.bench_causal_conv``. The channels are those of Qwen3.5-4B and
Qwen3-Next-80B-A3B.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import torch
from prefill_kernels.causal_conv import Taps, causal_conv
from prefill_kernels.causal_conv.reference import causal_conv_reference
from sglang.kernels.ops.mamba.causal_conv1d_triton import causal_conv1d_fn
from torch import Tensor

from bench.kernels.harness import Case, Way, cuda_device, measure
from sglang_prefill_ext.layout.recurrence_plan import Recurrence, RecurrencePlan
from sglang_prefill_ext.layout.tokens import ForwardLayout, GroupSpan

DTYPE = torch.bfloat16
KEYS, VALUES, WIDTH = 2048, 4096, 4
SHAPES = ((60, 50, 2), (120, 10, 180), (576, 16, 576))
"""Tokens of the prefix, rows, and tokens of each."""


def main() -> None:
    torch.manual_seed(0)
    device = cuda_device()
    measure(make_case(*shape, KEYS, VALUES, device) for shape in SHAPES)


def make_case(
    prefix: int, rows: int, length: int, num_keys: int, num_values: int, device: torch.device
) -> Case:
    """One group."""
    span = GroupSpan(0, prefix, np.full(rows, length, dtype=np.int32))
    plan = RecurrencePlan(ForwardLayout((span,)), Recurrence(WIDTH))
    sizes = [num_keys, num_keys, num_values]
    tokens, channels = span.num_tokens, 2 * num_keys + num_values
    order = torch.arange(tokens, dtype=torch.int32, device=device)
    taps = Taps(order, torch.from_numpy(plan.previous()).to(device))
    x = torch.randn(tokens, channels, dtype=DTYPE, device=device)
    weight = torch.randn(channels, WIDTH, dtype=DTYPE, device=device)
    held = torch.zeros(WIDTH - 1, channels, dtype=DTYPE, device=device)
    inputs = (x, held, taps)

    def in_torch() -> Way:
        return lambda: causal_conv_reference(*inputs, weight.float(), None, sizes=sizes)

    return Case(
        "causal_conv",
        {"prefix": prefix, "rows": rows, "row_tokens": length, "channels": channels},
        DTYPE,
        moved_bytes=2 * x.nbytes + weight.nbytes + taps.previous.nbytes,
        flops=2 * WIDTH * x.numel(),
        tolerance=5e-2,
        ours={"causal_conv": lambda: lambda: causal_conv(*inputs, weight, None, sizes=sizes)},
        baselines={
            "torch": in_torch,
            "SGLang, twice": lambda: _twice(x, weight, sizes, span, device),
        },
    )


def _twice(
    x: Tensor, weight: Tensor, sizes: list[int], span: GroupSpan, device: torch.device
) -> Way:
    """SGLang's kernel over the prefix, then over the rows, each with a copy of its state."""
    lens, cut = span.suffix_lens.tolist(), span.fresh
    of_prefix, of_rows = (
        torch.tensor([0, *accumulate(each)], dtype=torch.int32, device=device)
        for each in ([cut], lens)
    )
    first = torch.zeros(1, dtype=torch.int32, device=device)
    each = torch.arange(len(lens), dtype=torch.int32, device=device)
    channels, width = weight.shape

    def convolve(part: Tensor, bounds: Tensor, states: Tensor, at: Tensor, of: list[int]) -> Tensor:
        out: Tensor = causal_conv1d_fn(
            *(part.T, weight, None, states, bounds, of, at),
            has_initial_state=torch.ones_like(at, dtype=torch.bool),
        )
        return out.T

    def run() -> tuple[Tensor, ...]:
        state = x.new_zeros(1, channels, width - 1)
        parts = [convolve(x[:cut], of_prefix, state, first, [cut])]
        states = state.repeat(len(lens), 1, 1)
        parts.append(convolve(x[cut:], of_rows, states, each, lens))
        return tuple(each.contiguous() for each in torch.split(torch.cat(parts), sizes, dim=1))

    return run


if __name__ == "__main__":
    main()

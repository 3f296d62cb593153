"""Time merge_state against the same formula in PyTorch.

Run as ``python -m bench.kernels.bench_merge_state``. The heads are those of Qwen3-0.6B (16 of size
128) and Qwen3-8B (32 of size 128).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch
from prefill_kernels.merge_state import merge_state
from torch import Tensor

from bench.kernels.harness import Case, Way, cuda_device, measure

HEAD_DIM = 128
DTYPE = torch.bfloat16


def main() -> None:
    torch.manual_seed(0)
    measure(cases(cuda_device()))


def cases(device: torch.device) -> Iterator[Case]:
    for tokens, heads in product((64, 1024, 16384), (16, 32)):
        yield make_case(tokens, heads, device)


def make_case(tokens: int, heads: int, device: torch.device) -> Case:
    outs = torch.randn(2, tokens, heads, HEAD_DIM, dtype=DTYPE, device=device).unbind()
    lses = torch.randn(2, tokens, heads, device=device).unbind()

    def compiled() -> Way:
        torch.compiler.reset()  # so that every case is compiled for its own shape
        merge = torch.compile(_merge_in_torch)
        return lambda: merge(outs, lses)

    return Case(
        "merge_state",
        {"tokens": tokens, "heads": heads, "head_dim": HEAD_DIM},
        DTYPE,
        # Each part is read once; the result, as large as one part, is written once.
        moved_bytes=3 * (outs[0].nbytes + lses[0].nbytes),
        flops=4 * outs[0].numel(),
        tolerance=2e-2,
        ours={"merge_state": lambda: lambda: merge_state(outs[0], lses[0], outs[1], lses[1])},
        baselines={
            "torch": lambda: lambda: _merge_in_torch(outs, lses),
            "torch.compile": compiled,
        },
    )


def _merge_in_torch(outs: tuple[Tensor, ...], lses: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    stacked = torch.stack(lses)
    lse = torch.logsumexp(stacked, dim=0)
    weights = torch.exp(stacked - lse).unsqueeze(-1)
    out = sum(weight * part.float() for weight, part in zip(weights, outs, strict=True))
    assert isinstance(out, Tensor)
    return out.to(outs[0].dtype), lse


if __name__ == "__main__":
    main()

"""merge_states against the same formula in PyTorch: ``python -m bench.kernels.bench_merge_state``.

Heads as in Qwen3-0.6B (16 of 128) and Qwen3-8B (32 of 128).
"""

from __future__ import annotations

from itertools import product

import torch
from prefill_kernels.merge_state import merge_states
from torch import Tensor

from bench.kernels.harness import Case, Way, cuda_device, measure

HEAD_DIM = 128


def main() -> None:
    device = cuda_device()
    torch.manual_seed(0)
    for tokens, heads, parts in product((64, 1024, 16384), (16, 32), (2, 3)):
        shape = {"tokens": tokens, "heads": heads, "head_dim": HEAD_DIM, "parts": parts}
        outs = torch.randn(
            parts, tokens, heads, HEAD_DIM, dtype=torch.bfloat16, device=device
        ).unbind()
        lses = torch.randn(parts, tokens, heads, device=device).unbind()
        # Each part is read once, and as much as one part is written.
        moved = (parts + 1) * (outs[0].nbytes + lses[0].nbytes)
        flops = 2 * parts * outs[0].numel()
        case = Case("merge_state", shape, torch.bfloat16, moved, flops, tolerance=2e-2)
        measure(case, _ways(outs, lses))


def _ways(outs: tuple[Tensor, ...], lses: tuple[Tensor, ...]) -> dict[str, Way]:
    torch.compiler.reset()  # so that every case is compiled for its own shape
    compiled = torch.compile(_merge_in_torch)
    return {
        "merge_states": lambda: merge_states(outs, lses),
        "torch": lambda: _merge_in_torch(outs, lses),
        "torch.compile": lambda: compiled(outs, lses),
    }


def _merge_in_torch(outs: tuple[Tensor, ...], lses: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    stacked = torch.stack(lses)
    lse = torch.logsumexp(stacked, dim=0)
    weights = torch.exp(stacked - lse).unsqueeze(-1)
    out = sum(weight * part.float() for weight, part in zip(weights, outs, strict=True))
    assert isinstance(out, Tensor)
    return out.to(outs[0].dtype), lse


if __name__ == "__main__":
    main()

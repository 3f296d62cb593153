"""Attention of packed rows by kernels of other projects, for comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from bench.kernels.harness import Way


@dataclass(frozen=True)
class Problem:
    """The inputs of attention: keys `[prefix][row][row]...` of each group, group after group.

    A *segment* is a prefix or a row. Its tokens are queries, unless its K and V exist already.

    Attributes:
        q: `[Q, H, D]`, segment by segment.
        k, v: `[T, KH, D]`.
        scale: of the scores.
        starts, lens: `[segments]` of queries: first token among the keys, and length.
        prefix_starts, prefix_lens: `[segments]`: the prefix that a row sees; length 0 for a prefix.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    starts: NDArray[np.int64]
    lens: NDArray[np.int64]
    prefix_starts: NDArray[np.int64]
    prefix_lens: NDArray[np.int64]

    def on_device(self, array: NDArray[np.int64], dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.q.device, dtype)

    def query_tokens(self) -> NDArray[np.int64]:
        """`[Q]`: the index of each query's token among the keys."""
        return np.concatenate(
            [np.arange(start, start + n) for start, n in zip(self.starts, self.lens, strict=True)]
        )

    def query_offsets(self) -> Tensor:
        """int32 `[segments + 1]`: offsets of each segment's queries, and their total number."""
        return self.on_device(np.append(0, np.cumsum(self.lens)))

    def rows_only(self) -> Problem:
        """The same problem with cached prefixes: only tokens of rows are queries."""
        is_row = self.prefix_lens > 0
        columns = (self.starts, self.lens, self.prefix_starts, self.prefix_lens)
        in_rows = self.on_device(np.flatnonzero(np.repeat(is_row, self.lens)), torch.int64)
        return Problem(
            *(self.q[in_rows], self.k, self.v, self.scale),
            *(column[is_row] for column in columns),
        )


def flex(problem: Problem) -> Way:
    """One compiled FlexAttention over all tokens, with a mask that lets rows see their prefix."""
    tokens = problem.on_device(problem.query_tokens())
    segments = [
        problem.on_device(np.repeat(x, problem.lens))
        for x in (
            problem.starts,
            problem.prefix_starts,
            problem.prefix_starts + problem.prefix_lens,
        )
    ]

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        start, prefix_start, prefix_stop = (x[query] for x in segments)
        is_own = (key >= start) & (key <= tokens[query])
        return is_own | ((key >= prefix_start) & (key < prefix_stop))

    sizes = (problem.q.shape[0], problem.k.shape[0])
    mask = create_block_mask(visible, None, None, *sizes, str(problem.q.device))
    torch.compiler.reset()  # so that every case is compiled for its own shape
    compiled = torch.compile(flex_attention, dynamic=False)
    q, k, v = (x.transpose(0, 1)[None] for x in (problem.q, problem.k, problem.v))

    def attend() -> tuple[Tensor]:
        out = compiled(q, k, v, block_mask=mask, scale=problem.scale, enable_gqa=True)
        return (out[0].transpose(0, 1),)

    return attend


def flash_attention_3(problem: Problem) -> Way:
    """Page aliasing: every prefix and row is a sequence, and rows share their prefix's pages.

    Raises:
        ImportError: sglang-kernel is not installed.
    """
    from sgl_kernel.flash_attn import flash_attn_with_kvcache

    pages = [
        np.concatenate([np.arange(prefix, prefix + prefix_len), np.arange(start, start + length)])
        for start, length, prefix, prefix_len in _segments(problem)
    ]
    page_table = np.zeros((len(pages), max(map(len, pages))), dtype=np.int64)
    for row, entries in zip(page_table, pages, strict=True):
        row[: len(entries)] = entries
    arguments = {
        "page_table": problem.on_device(page_table),
        "cache_seqlens": problem.on_device(problem.prefix_lens + problem.lens),
        "cu_seqlens_q": problem.query_offsets(),
        "max_seqlen_q": int(problem.lens.max()),
        "softmax_scale": problem.scale,
        "causal": True,
    }
    k, v = problem.k[:, None], problem.v[:, None]
    return lambda: (flash_attn_with_kvcache(problem.q, k, v, **arguments),)


def sglang_triton(problem: Problem) -> Way:
    """Page aliasing in SGLang's Triton kernel: rows extend their prefix, which they share.

    Raises:
        ImportError: SGLang is not installed.
    """
    from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd

    prefixes = [
        np.arange(prefix, prefix + prefix_len) for _, _, prefix, prefix_len in _segments(problem)
    ]
    q, k, v = problem.q, problem.k, problem.v
    own = problem.on_device(problem.query_tokens(), torch.int64)
    own_k, own_v = k[own], v[own]
    query_offsets = problem.query_offsets()
    prefix_offsets = problem.on_device(np.append(0, np.cumsum(problem.prefix_lens)))
    prefix_slots = problem.on_device(np.concatenate(prefixes), torch.int64)
    longest = int(problem.lens.max())

    def attend() -> tuple[Tensor]:
        out = torch.empty_like(q)
        indices = (query_offsets, prefix_offsets, prefix_slots)
        extend_attention_fwd(
            *(q, own_k, own_v, out, k, v, *indices),
            custom_mask=None,
            is_causal=True,
            mask_indptr=None,
            max_len_extend=longest,
            k_scale=1.0,
            v_scale=1.0,
            sm_scale=problem.scale,
        )
        return (out,)

    return attend


def _segments(problem: Problem) -> list[tuple[int, int, int, int]]:
    columns = (problem.starts, problem.lens, problem.prefix_starts, problem.prefix_lens)
    return list(zip(*(column.tolist() for column in columns), strict=True))


BASELINES: dict[str, Callable[[Problem], Way]] = {
    "page aliasing, FlashAttention-3": flash_attention_3,
    "page aliasing, SGLang Triton": sglang_triton,
    "FlexAttention": flex,
}

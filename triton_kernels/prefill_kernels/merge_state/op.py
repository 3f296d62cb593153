"""Merge attention over disjoint key sets in one launch."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from prefill_kernels.errors import check_launchable, check_tensor, require
from prefill_kernels.merge_state.configs import NUM_WARPS, constexprs
from prefill_kernels.merge_state.kernel import merge_parts_kernel, merge_states_kernel
from prefill_kernels.prepared import PreparedLaunches, look, place

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MAX_PAIRS = 2**30
"""(token, head) pairs that the kernel can count in 32 bits."""


def merge_state(
    out_a: Tensor,
    lse_a: Tensor,
    out_b: Tensor,
    lse_b: Tensor,
    *,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`merge_states` of two parts."""
    return merge_states((out_a, out_b), (lse_a, lse_b), out=out, lse=lse)


def merge_states(
    outs: Sequence[Tensor],
    lses: Sequence[Tensor],
    *,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention over the union of disjoint key sets, from the attention over each.

    ::

        lse = log(sum_i exp(lses[i]))
        out = sum_i exp(lses[i] - lse) * outs[i]

    Source: the composition of attention states in FlashInfer (Ye et al. 2025, section 2.2), which
    is the rescaling step of FlashAttention (Dao et al. 2022, algorithm 1) for several blocks.

    Args:
        outs: 2 to 4 parts `[tokens, heads, head_dim]`, all of one dtype: bfloat16, float16 or
            float32. The last dimension has stride 1, the others any.
        lses: for each part float32 `[tokens, heads]`, any strides, natural log; -inf where the part
            saw no key.
        out, lse: where to write, shaped and typed as one part; allocated if not given. Each may be
            one of the parts' own tensors, and must not overlap them otherwise.

    Returns:
        `out` `[tokens, heads, head_dim]` and `lse` float32 `[tokens, heads]`. A part of weight zero
        is not read, whatever its `out` holds (NaN included). Where every part is empty, `out` is 0
        and `lse` is -inf. A NaN among the `lses` makes both NaN.

    Raises:
        KernelArgumentError: wrong number of parts, or a dtype, shape, stride or device that the
            kernel cannot take; nothing was launched.
    """
    where = place(outs[0]) if outs else None
    key = (where, *map(look, outs), None, *map(look, lses), None, look(out), look(lse))
    prepared = _LAUNCHES.get(key)
    if prepared is None:
        count = len(outs)
        require(2 <= count <= 4, "outs", f"{count} parts", "pass 2 to 4")
        require(len(lses) == count, "lses", f"{len(lses)} parts", f"pass {count}, as in outs")
        prepared = _LAUNCHES.keep(key, _prepare(outs, lses, out, lse))
    shape = prepared.shape
    out = outs[0].new_empty(shape) if out is None else out
    lse = outs[0].new_empty(shape[:2], dtype=torch.float32) if lse is None else lse
    if prepared.grid[0]:
        merge_states_kernel[prepared.grid](
            tuple(outs),
            prepared.out_strides,
            tuple(map(_dense, lses)),
            *(out, out.stride()[:2], lse, lse.stride()),
            *(prepared.num_pairs, shape[1]),
            **prepared.constants,
        )
    return out, lse


def merge_parts(outs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
    """`merge_states` of any number of parts in one tensor.

    Args:
        outs: `[parts, tokens, heads, head_dim]`, at least one part; see `merge_states`.
        lses: float32 `[parts, tokens, heads]`, any strides.

    Raises:
        KernelArgumentError: as `merge_states` does.
    """
    key = (place(outs), look(outs), look(lses))
    prepared = _PARTS_LAUNCHES.get(key)
    if prepared is None:
        check_launchable("outs", outs)
        check_tensor("outs", outs, (None, None, None, None), DTYPES, outs.device)
        require(outs.shape[0] > 0, "outs", "without parts", "pass at least one")
        _check_lse("lses", lses, outs)
        prepared = _PARTS_LAUNCHES.keep(key, _prepare((outs[0],), (lses[0],), None, None))
    out = outs.new_empty(prepared.shape)
    lse = outs.new_empty(prepared.shape[:2], dtype=torch.float32)
    if prepared.grid[0]:
        merge_parts_kernel[prepared.grid](
            *(outs, outs.stride()[:3], lses, lses.stride()),
            *(out, out.stride()[:2], lse, lse.stride()),
            *(outs.shape[0], prepared.num_pairs, prepared.shape[1]),
            **prepared.constants,
        )
    return out, lse


class _Launch(NamedTuple):
    """What all launches with the same shapes have in common."""

    grid: tuple[int]
    shape: tuple[int, int, int]
    out_strides: tuple[tuple[int, ...], ...]
    num_pairs: int
    constants: dict[str, int]


_LAUNCHES = PreparedLaunches[_Launch]()
_PARTS_LAUNCHES = PreparedLaunches[_Launch]()


def _prepare(
    outs: Sequence[Tensor], lses: Sequence[Tensor], out: Tensor | None, lse: Tensor | None
) -> _Launch:
    """Check all tensors, and compute what does not depend on their contents."""
    check_launchable("outs[0]", outs[0])
    check_tensor("outs[0]", outs[0], (None, None, None), DTYPES, outs[0].device)
    tokens, heads, head_dim = outs[0].shape
    require(head_dim > 0, "outs[0]", f"of shape {list(outs[0].shape)}", "head_dim must be positive")
    require(tokens * heads <= MAX_PAIRS, "outs[0]", f"{tokens} tokens long", "merge it in pieces")
    for i, (part, part_lse) in enumerate(zip(outs, lses, strict=True)):
        _check_out(f"outs[{i}]", part, outs[0])
        _check_lse(f"lses[{i}]", part_lse, outs[0])
    if out is not None:
        _check_out("out", out, outs[0])
    if lse is not None:
        _check_lse("lse", lse, outs[0])
    sizes = constexprs(head_dim, outs[0].dtype)
    return _Launch(
        grid=(triton.cdiv(tokens * heads, sizes["BLOCK_PAIRS"]),),
        shape=(tokens, heads, head_dim),
        out_strides=tuple(part.stride()[:2] for part in outs),
        num_pairs=tokens * heads,
        constants={**sizes, "num_warps": NUM_WARPS, "num_stages": 1},
    )


def _dense(lse: Tensor) -> Tensor:
    """The tensor itself if it is contiguous and aligned, else a copy that is.

    Results of libraries and slices may be neither. Triton would compile the kernel again for other
    strides, and for an address that is not a multiple of 16.
    """
    if lse.is_contiguous() and lse.data_ptr() % 16 == 0:
        return lse
    return lse.clone(memory_format=torch.contiguous_format)


def _check_out(name: str, part: Tensor, like: Tensor) -> None:
    check_tensor(name, part, like.shape, (like.dtype,), like.device)


def _check_lse(name: str, lse: Tensor, like: Tensor) -> None:
    check_tensor(name, lse, like.shape[:-1], (torch.float32,), like.device, any_stride=True)

"""Merge attention over disjoint key sets in one launch."""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from prefill_kernels.errors import FLOATS, check_launchable, check_tensor, require
from prefill_kernels.merge_state.configs import NUM_WARPS, constexprs
from prefill_kernels.merge_state.kernel import merge_parts_kernel, merge_states_kernel
from prefill_kernels.prepared import PreparedLaunches, look, place

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
    """Attention over the union of two disjoint key sets, from the attention over each.

    ::

        lse = log(exp(lse_a) + exp(lse_b))
        out = exp(lse_a - lse) * out_a + exp(lse_b - lse) * out_b

    Source: the composition of attention states in FlashInfer (Ye et al. 2025, section 2.2), which
    is the rescaling step of FlashAttention (Dao et al. 2022, algorithm 1) for two blocks.

    Args:
        out_a, out_b: `[tokens, heads, head_dim]`, both of one dtype: bfloat16, float16 or float32.
            The last dimension has stride 1, the others any.
        lse_a, lse_b: float32 `[tokens, heads]`, any strides, natural log; -inf where the part saw
            no key.
        out, lse: where to write, shaped and typed as one part; allocated if not given. Each may be
            one of the parts' own tensors, and must not overlap them otherwise.

    Returns:
        `out` `[tokens, heads, head_dim]` and `lse` float32 `[tokens, heads]`. A part of weight zero
        is not read, whatever its `out` holds (NaN included). Where both parts are empty, `out` is 0
        and `lse` is -inf. Where one `lse` is NaN, both are NaN.

    Raises:
        KernelArgumentError: a dtype, shape, stride or device that the kernel cannot take; nothing
            was launched.
    """
    looks = map(look, (out_a, lse_a, out_b, lse_b, out, lse))
    key = (place(out_a), *looks)
    prepared = _LAUNCHES.get(key)
    if prepared is None:
        check_launchable("out_a", out_a)
        check_tensor("out_a", out_a, (None, None, None), FLOATS, out_a.device)
        _check(out_a, {"out_b": out_b, "out": out}, {"lse_a": lse_a, "lse_b": lse_b, "lse": lse})
        prepared = _LAUNCHES.keep(key, _prepare("out_a", out_a, out_b))
    shape = prepared.shape
    out = out_a.new_empty(shape) if out is None else out
    lse = out_a.new_empty(shape[:2], dtype=torch.float32) if lse is None else lse
    if prepared.grid[0]:
        merge_states_kernel[prepared.grid](
            (out_a, out_b),
            prepared.out_strides,
            (_dense(lse_a), _dense(lse_b)),
            *(out, out.stride()[:2], lse, lse.stride()),
            *(prepared.num_pairs, shape[1]),
            **prepared.constants,
        )
    return out, lse


def merge_parts(outs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
    """`merge_state` of any number of parts in one tensor.

    Args:
        outs: `[parts, tokens, heads, head_dim]`, at least one part; see `merge_state`.
        lses: float32 `[parts, tokens, heads]`, any strides.

    Raises:
        KernelArgumentError: as `merge_state` does.
    """
    key = (place(outs), look(outs), look(lses))
    prepared = _PARTS_LAUNCHES.get(key)
    if prepared is None:
        check_launchable("outs", outs)
        check_tensor("outs", outs, (None, None, None, None), FLOATS, outs.device)
        require(outs.shape[0] > 0, "outs", "without parts", "pass at least one")
        _check(outs, {}, {"lses": lses})
        prepared = _PARTS_LAUNCHES.keep(key, _prepare("outs", outs[0]))
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


def _prepare(name: str, *parts: Tensor) -> _Launch:
    """Compute what does not depend on the contents of parts that are shaped alike."""
    tokens, heads, head_dim = parts[0].shape
    shape = list(parts[0].shape)
    require(head_dim > 0, name, f"of shape {shape}", "head_dim must be positive")
    require(tokens * heads <= MAX_PAIRS, name, f"{tokens} tokens long", "merge it in pieces")
    sizes = constexprs(head_dim, parts[0].dtype)
    return _Launch(
        grid=(triton.cdiv(tokens * heads, sizes["BLOCK_PAIRS"]),),
        shape=(tokens, heads, head_dim),
        out_strides=tuple(part.stride()[:2] for part in parts),
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


def _check(like: Tensor, outs: dict[str, Tensor | None], lses: dict[str, Tensor | None]) -> None:
    """Require results that are shaped and typed as `like`, and their log-sum-exp."""
    for name, out in outs.items():
        if out is not None:
            check_tensor(name, out, like.shape, (like.dtype,), like.device)
    for name, lse in lses.items():
        if lse is not None:
            sizes, float32 = like.shape[:-1], (torch.float32,)
            check_tensor(name, lse, sizes, float32, like.device, any_stride=True)

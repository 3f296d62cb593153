"""Check that the kernels compute the same as dense torch calls, on this device and these heads.

The check runs once at start, before anything is served: if a kernel is wrong with some driver,
compiler or device, that must cost speed, but never change answers. It also compiles the kernels
before the first request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from prefill_kernels.label_readout import label_readout
from torch import Tensor

from sglang_prefill_ext.attention.dense import DenseAttention
from sglang_prefill_ext.attention.inputs import HeadShape, HeldKV, LayerInputs
from sglang_prefill_ext.attention.kernels import KernelAttention
from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.layout.kernel_plan import DIVIDED_PREFIX_TOKENS
from sglang_prefill_ext.layout.tokens import ForwardLayout, GroupSpan

TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
"""Largest absolute difference from float32; outputs are of the order of one."""

_PROCESSORS = 132
"""Multiprocessors of an assumed device, so that the division of keys does not depend on the real
one."""


def wrong_kernel(
    shape: HeadShape, dtype: torch.dtype, device: torch.device, *, causal: bool = True
) -> str:
    """Return which kernel is wrong or raises here, and how; empty if none does.

    Args:
        shape, dtype, device: those of the model.
        causal: whether the model's attention is causal, see `ForwardLayout`.
    """
    kind = (shape, dtype, device)
    layout, long = (_MIXED, _LONG_PREFIX) if causal else (_WHOLE_PROMPTS, _WHOLE_PROMPTS)
    checks: tuple[tuple[str, Callable[[], float]], ...] = (
        ("fused attention", lambda: _attention_error(AttentionWay.FUSED, layout, *kind)),
        ("merged attention", lambda: _attention_error(AttentionWay.MERGE, layout, *kind)),
        ("divided attention", lambda: _attention_error(AttentionWay.FUSED, long, *kind)),
        ("label read-out", lambda: _readout_error(dtype, device)),
    )
    found = (_fault(name, error_of, dtype) for name, error_of in checks)
    return next(filter(None, found), "")


def wrong_library(
    way: AttentionWay, shape: HeadShape, dtype: torch.dtype, device: torch.device
) -> str:
    """Return how one of `LIBRARIES` is wrong or raises here; empty if it is right.

    A library that is not installed raises, too.
    """
    return _fault(way, lambda: _attention_error(way, _MIXED, shape, dtype, device), dtype)


def _fault(name: str, error_of: Callable[[], float], dtype: torch.dtype) -> str:
    try:
        error = error_of()
    except Exception as failure:
        # Compilers and drivers raise all kinds of errors; each means that the kernel is no use.
        return f"{name} fails: {type(failure).__name__}: {failure}"
    if not error <= TOLERANCE[dtype]:
        return f"{name} is off by {error:.1e}, tolerance {TOLERANCE[dtype]:.0e} in {dtype}"
    return ""


def _attention_error(
    way: AttentionWay,
    layout: ForwardLayout,
    shape: HeadShape,
    dtype: torch.dtype,
    device: torch.device,
) -> float:
    reads = torch.from_numpy(layout.read_positions()).to(device)
    inputs, cached, page_table = _inputs(layout, shape, dtype, device)
    kernels = KernelAttention(layout, way, (shape,), dtype, device, processors=_PROCESSORS)
    arrays = [torch.from_numpy(array).to(device) for array in kernels.host_arrays()]
    kernels.bind(arrays, page_table)
    dense = DenseAttention(layout, device)
    dense.bind((), page_table)
    q, k, v, scale = inputs.q, inputs.k, inputs.v, inputs.scale
    exact = LayerInputs(q.float(), k.float(), v.float(), scale, chunk=shape.chunk)
    with _exact_products():
        wanted = dense.forward(exact, (cached[0].float(), cached[1].float()))
    out = kernels.forward(inputs, cached)
    read = kernels.read(replace(inputs, q=q[reads]), cached)
    # numpy's maximum keeps a NaN; Python's `max` may drop it.
    return float(np.maximum(_difference(out, wanted), _difference(read, wanted[reads])))


def _layout(*spans: tuple[int, int, list[int]], causal: bool = True) -> ForwardLayout:
    groups = (GroupSpan(held, fresh, np.array(lens, np.int32)) for held, fresh, lens in spans)
    return ForwardLayout(tuple(groups), causal=causal)


_MIXED = _layout((37, 0, [1, 5]), (0, 70, [3, 1, 130]), (5, 9, [2, 2]), (0, 0, [40]))
"""Groups with a held prefix, a fresh one, both or none; rows from one token to over a tile."""

_LONG_PREFIX = _layout((DIVIDED_PREFIX_TOKENS, 33, [1, 5]))
"""One group whose prefix is so long that its keys are divided among tiles."""

_WHOLE_PROMPTS = _layout((0, 0, [1, 5, 130, 3]), (0, 0, [40]), causal=False)


def _inputs(
    layout: ForwardLayout, shape: HeadShape, dtype: torch.dtype, device: torch.device
) -> tuple[LayerInputs, HeldKV, Tensor | None]:
    """Return random layer inputs, K/V of a pool, and a page table; None if no prefix is held."""
    generator = torch.Generator().manual_seed(0)

    def draw(tokens: int, heads: int, dim: int) -> Tensor:
        # Strided like a slice of a fused q/k/v projection.
        return torch.randn(tokens, 2 * heads, dim, generator=generator).to(device, dtype)[:, :heads]

    def keys_values(tokens: int) -> HeldKV:
        return (
            draw(tokens, shape.num_key_heads, shape.head_dim),
            draw(tokens, shape.num_key_heads, shape.value_dim),
        )

    q = draw(layout.num_tokens, shape.num_heads, shape.head_dim)
    num_held = int(layout.held.sum())
    slots = torch.randperm(2 * num_held, generator=generator)[:num_held].to(device, torch.int32)
    scale, kv = shape.head_dim**-0.5, keys_values(layout.num_tokens)
    inputs = LayerInputs(q, *kv, scale, chunk=shape.chunk)
    return inputs, keys_values(2 * num_held), slots if num_held else None


def _readout_error(dtype: torch.dtype, device: torch.device) -> float:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(70, 96, generator=generator).to(device, dtype)
    weight = (torch.randn(300, 96, generator=generator) / 96**0.5).to(device, dtype)
    with _exact_products():
        wanted = (hidden.float() @ weight.float().T).log_softmax(-1)
    errors = []
    for num_rows in (5, 70):  # few and many rows are launched in different ways
        rows = torch.arange(num_rows, device=device)
        labels = rows * 4
        logits, lse = label_readout(hidden[:num_rows], weight, labels, rows, normalised=True)
        assert lse is not None
        errors.append(_difference(logits - lse, wanted[rows, labels]))
    return float(np.max(errors))


@contextmanager
def _exact_products() -> Iterator[None]:
    """Compute float32 products in full float32, even where the server's flags allow TF32."""
    allowed = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(allowed)


def _difference(found: Tensor, wanted: Tensor) -> float:
    """Largest absolute difference; NaN if either has one."""
    return float((found.float() - wanted).abs().max())

"""Attention of one packed forward by the Triton kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain, islice

import numpy as np
import torch
from numpy.typing import NDArray
from prefill_kernels import shared_prefix_attention as fused
from prefill_kernels.errors import KernelArgumentError, check_launchable
from prefill_kernels.merge_state import merge_state
from torch import Tensor

from sglang_prefill_ext.attention.inputs import HeadShape, HeldKV, LayerInputs
from sglang_prefill_ext.attention.prefix_libraries import LIBRARIES, LibraryPrefixes
from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.layout.kernel_plan import KernelPlan, of_fixed_size, plan_tiles
from sglang_prefill_ext.layout.tokens import ForwardLayout


class KernelAttention:
    """A `layers.Attention` by the Triton kernels.

    They read a few small integer arrays that describe the layout. These are made on the
    host, uploaded by the caller together with its other arrays, and handed to `bind`. Held prefixes
    are read in the KV pool through a page table; only libraries need a copy of them.

    Args:
        way: FUSED, MERGE or one of `LIBRARIES`.
        shapes: of the layers' heads, each once; the sizes of tiles depend on them.
        dtype: of queries, keys and values.
        most_groups: for a graph: make arrays large enough for every layout of as many tokens and at
            most so many groups, and none for `read`. None: as large as this layout needs.
        processors: multiprocessors of the device. If few of them would have work, the keys of long
            prefixes are divided. 0: they never are, as in a graph, whose number of tiles is fixed.
    """

    def __init__(
        self,
        layout: ForwardLayout,
        way: AttentionWay,
        shapes: Sequence[HeadShape],
        dtype: torch.dtype,
        device: torch.device,
        *,
        most_groups: int | None = None,
        processors: int = 0,
    ) -> None:
        programs = fused.PROGRAMS_OF_A_PROCESSOR * processors
        self._layout = layout
        self._merges = way is AttentionWay.MERGE
        self._library = LibraryPrefixes(layout, way) if way in LIBRARIES else None
        # If another launch computes the prefix, this one has own keys only, too few to divide.
        few = 0 if self._merges or self._library else programs

        def plans_for(shape: HeadShape) -> list[KernelPlan]:
            sizes = (shape.group_size, shape.largest_dim, dtype, device)
            own = fused.block_tokens(*sizes)
            plan = partial(plan_tiles, layout, key_heads=shape.num_key_heads, chunk=shape.chunk)
            plans = [plan(block_tokens=own, programs=few)]
            if self._merges:
                large = fused.block_tokens(*sizes, fused.KeyParts.PREFIX)
                plans.append(plan(block_tokens=large, programs=processors))
            if most_groups is not None:
                return [of_fixed_size(each, most_groups) for each in plans]
            ends = layout.last_layer_queries()
            return [*plans, plan(block_tokens=own, programs=programs, queries=ends)]

        self._alike = {shape: _without_idle_chunk(shape, layout) for shape in shapes}
        self._plans = {shape: plans_for(shape) for shape in dict.fromkeys(self._alike.values())}
        self._tiles: dict[HeadShape, list[fused.TilePlan]] = {}
        self._only: list[fused.TilePlan] | None = None  # of a model whose layers' heads are alike
        self._page_table: Tensor | None = None

    def host_arrays(self) -> Sequence[NDArray[np.int32]]:
        plans = chain(*self._plans.values())
        arrays = [each for p in plans for each in (p.query_token, p.segment_start, p.tiles)]
        return [*arrays, *(self._library.host_arrays() if self._library else ())]

    def bind(self, arrays: Sequence[Tensor], page_table: Tensor | None = None) -> None:
        self._page_table = page_table
        left = iter(arrays)
        planned = {
            shape: [_device_plan(plan, islice(left, 3)) for plan in plans]
            for shape, plans in self._plans.items()
        }
        self._tiles = {shape: planned[alike] for shape, alike in self._alike.items()}
        if len(planned) == 1:
            (self._only,) = planned.values()
        if self._library:
            self._library.bind([*left], page_table)

    def forward(self, inputs: LayerInputs, cached: HeldKV | None) -> Tensor:
        if inputs.window is not None or inputs.chunk:
            self._layout.require_causal_window()
        tiles = self._only or self._tiles[inputs.heads]
        if self._library and inputs.is_plain:
            part = self._library.forward(inputs, cached)
        elif self._merges:
            paged = self._paged(cached)
            part = _fused(inputs, tiles[1], cached=paged, parts=fused.KeyParts.PREFIX)
        else:
            return _fused(inputs, tiles[0], cached=self._paged(cached))[0]
        out, lse = _fused(inputs, tiles[0], parts=fused.KeyParts.OWN)
        return out if part is None else merge_state(out, lse, *part, out=out, lse=lse)[0]

    def read(self, inputs: LayerInputs, cached: HeldKV | None) -> Tensor:
        # Always fused: with one query a row there is too little work for a second launch.
        tiles = self._only or self._tiles[inputs.heads]
        return _fused(inputs, tiles[-1], cached=self._paged(cached))[0]

    def _paged(self, cached: HeldKV | None) -> fused.CachedKV | None:
        if cached is None or self._page_table is None:
            return None
        return fused.CachedKV(*cached, self._page_table)


def _without_idle_chunk(shape: HeadShape, layout: ForwardLayout) -> HeadShape:
    """The shape, without chunks if each prompt of the layout lies in its first one."""
    idle = shape.chunk and shape.chunk > layout.positions().max()
    return replace(shape, chunk=0) if idle else shape


@cache
def multiprocessors(device: torch.device) -> int:
    """How many multiprocessors the device has; 0 if it is not a CUDA device."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def kernel_obstacle(shape: HeadShape, dtype: torch.dtype, device: torch.device) -> str:
    """Return why the kernels cannot compute this attention; empty if they can."""
    try:
        check_launchable("the model", torch.empty(0, device=device))
        fused.block_tokens(shape.group_size, shape.largest_dim, dtype, device)
    except KernelArgumentError as error:
        return str(error)
    return ""


def _fused(
    inputs: LayerInputs,
    plan: fused.TilePlan,
    *,
    cached: fused.CachedKV | None = None,
    parts: fused.KeyParts = fused.KeyParts.ALL,
) -> tuple[Tensor, Tensor]:
    return fused.shared_prefix_attention(
        *(inputs.q, inputs.k, inputs.v, plan, inputs.scale),
        cached=cached,
        parts=parts,
        soft_cap=inputs.soft_cap,
        window=inputs.window,
        # The sinks must be counted once, so with the own keys only.
        sinks=inputs.sinks if fused.KeyParts.OWN in parts else None,
    )


def _device_plan(plan: KernelPlan, arrays: Iterable[Tensor]) -> fused.TilePlan:
    query_token, segment_start, tiles = arrays
    return fused.TilePlan(query_token, segment_start, tiles, plan.block_tokens, plan.parts)

"""Run one planned forward, eagerly or as a graph: upload, model, packed attention, read-out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sglang_prefill_ext.attention.dense import DenseAttention
from sglang_prefill_ext.attention.kernels import KernelAttention, multiprocessors
from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.forward.graphs.plan import GraphUse
from sglang_prefill_ext.forward.graphs.replay import PackedGraphs
from sglang_prefill_ext.forward.layers import Attention, LayerAttention
from sglang_prefill_ext.forward.model import Adapted, Model, Overrides
from sglang_prefill_ext.forward.readers.labels import LabelReader
from sglang_prefill_ext.forward.readers.vectors import VectorReader
from sglang_prefill_ext.forward.upload import ForwardCompletion, flat, in_groups, upload
from sglang_prefill_ext.layout.recurrence_plan import RecurrencePlan
from sglang_prefill_ext.layout.tokens import ForwardLayout, bounds_of
from sglang_prefill_ext.recurrent.layers import LayerRecurrence
from sglang_prefill_ext.scheduling.planner import ForwardPlan

_CPU_CACHE_BYTES = 4 << 20
"""Size of a chunk of logits on a CPU. A read-out passes over its chunk several times: this takes
half as long if the chunk fits into the CPU's caches, and the allocator reuses its memory."""


class PackedExecutor:
    """Launches planned forwards on a model.

    Args:
        readout_bytes: size of a chunk of full-vocabulary logits in the read-out, in bytes.
        attention: TORCH for dense torch calls, else how the Triton kernels are used; as
            `resolve_attention` returns it.
        caches_prefixes: whether graphs read and write cached prefixes in the model's pool.

    Attributes:
        asynchronous, causal: see `Model`.
        graph_use: which graphs there are, and how forwards ran since they were asked for.
        chunk_reads: reads in one chunk of logits over the vocabulary; 0 if the model makes vectors.
        counts_next: called with the tokens of each forward before it; says whether the routing of
            its experts is counted, so that it cannot be replayed. None: that of no forward is.
    """

    def __init__(
        self,
        model: Model,
        *,
        readout_bytes: int,
        attention: AttentionWay = AttentionWay.TORCH,
        caches_prefixes: bool = False,
    ) -> None:
        self.model, self.attention = model, attention
        self.asynchronous, self.causal = model.asynchronous, model.causal
        # A graph would make keys and values of as many latents as its page table may name.
        self._caches_keys = caches_prefixes and not model.pool.keeps_latents
        self._graphs: PackedGraphs | None = None
        self.graph_use = GraphUse()
        self.counts_next: Callable[[int], bool] | None = None
        self._reader: LabelReader | VectorReader
        self.chunk_reads = 0
        if model.vector_width:
            self._reader = VectorReader(model.vector_width, unit_length=model.unit_length)
        else:
            if model.device.type == "cpu":
                readout_bytes = min(readout_bytes, _CPU_CACHE_BYTES)
            self.chunk_reads = max(1, readout_bytes // (4 * model.vocab_size))
            self._reader = LabelReader(
                model, max_rows=self.chunk_reads, kernels=attention is not AttentionWay.TORCH
            )

    def capture_graphs(self, max_tokens: int) -> None:
        """From now on, replay forwards of up to `max_tokens` tokens as graphs, if possible."""
        model, pool = self.model, self.model.pool if self._caches_keys else None
        chunks = [heads.chunk for heads in model.heads if heads.chunk]
        if chunks:  # a graph computes none: its prompts lie in their first one
            max_tokens, pool = min(max_tokens, *chunks), None
        self._graphs = PackedGraphs(model, self.attention, pool, self.graph_use, max_tokens)

    @property
    def most_held_in_graphs(self) -> int:
        """Most tokens of held prefixes in a forward that is replayed."""
        return self._graphs.most_held if self._graphs else 0

    @contextmanager
    def eagerly(self) -> Iterator[None]:
        """Run all forwards eagerly meanwhile, without counting them."""
        graphs, self._graphs = self._graphs, None
        try:
            yield
        finally:
            self._graphs = graphs

    def stop_replays(self, why: str) -> None:
        """From now on, run all forwards eagerly; graphs keep their memory."""
        if self._graphs and self.graph_use.sizes:
            self._graphs.give_up(why)

    def forget_graphs(self) -> None:
        """From now on, run all forwards eagerly, and free the memory of graphs."""
        self._graphs, self.graph_use = None, GraphUse()

    @torch.inference_mode()
    def launch(self, plan: ForwardPlan) -> ForwardCompletion:
        """Launch the forward, its read-out and the copy of its values to the host.

        Raises:
            RuntimeError: raised by torch, e.g. when memory is exhausted; no memory is kept.
        """
        if not self.model.causal:
            plan = replace(plan, layout=replace(plan.layout, causal=False))
        with self.model.stream():
            counted = self.counts_next is not None and self.counts_next(plan.num_tokens)
            hidden = self._graphs.run(plan, counted=counted) if self._graphs else None
            if hidden is None:
                hidden = self._run_eagerly(plan)
            return ForwardCompletion(self._reader.read(hidden, plan))

    def _run_eagerly(self, plan: ForwardPlan) -> Tensor:
        """Run a forward kernel by kernel; return the output of `Model.prepare` at the reads."""
        layout, model = plan.layout, self.model
        attention, recurrence = self._attention(layout), self._recurrence(plan)
        ends_only = layout.reads_row_ends
        reads = layout.last_layer_queries() if ends_only else layout.read_positions()
        groups: list[Sequence[NDArray[np.generic]]] = [
            [plan.token_ids.astype(np.int64), layout.positions(), reads],
            attention.host_arrays(),
            recurrence.host_arrays() if recurrence else (),
            [plan.override_at, plan.overrides] if len(plan.override_at) else (),
        ]
        tensors = in_groups(upload(flat(groups), model.device), groups)
        (tokens, positions, read_at), of_attention, of_recurrence, overrides = tensors
        if recurrence:
            recurrence.bind(of_recurrence)
        last_layer = model.last_layer if ends_only else None
        attend = LayerAttention(plan, attention, last_layer, model.pool)
        attention.bind(of_attention, attend.page_table())
        run = model.prepare(
            tokens,
            positions,
            read_at,
            _row_lens(layout),
            attend,
            Overrides(*overrides) if overrides else None,
            _adapted(plan, reads),
            shortened=ends_only,
            recur=recurrence,
        )
        return run()[: len(plan.reads)]

    def _recurrence(self, plan: ForwardPlan) -> LayerRecurrence | None:
        recurrence = self.model.recurrence
        if recurrence is None:
            return None
        stored = next((at for at, slots in enumerate(plan.stores) if slots is not None), None)
        planned = RecurrencePlan(plan.layout, recurrence, stored)
        kernels = self.attention is not AttentionWay.TORCH
        return LayerRecurrence(planned, self.model.pool.states, kernels=kernels)

    def _attention(self, layout: ForwardLayout) -> Attention:
        model = self.model
        if self.attention is AttentionWay.TORCH:
            return DenseAttention(layout, model.device)
        return KernelAttention(
            *(layout, self.attention, model.heads, model.dtype, model.device),
            processors=multiprocessors(model.device),
        )


def _row_lens(layout: ForwardLayout) -> list[int]:
    """One token count a row, for SGLang's metadata; they sum to the tokens of the forward.

    A fresh prefix counts for the first row of its group.
    """
    lens: list[int] = []
    for group in layout.groups:
        suffixes = group.suffix_lens.tolist() or [0]
        lens += [group.fresh + suffixes[0], *suffixes[1:]]
    return lens


def _adapted(plan: ForwardPlan, read_at: NDArray[np.int64]) -> list[Adapted]:
    """The parts of a forward with one adapter each; empty if none has an adapter."""
    if not any(plan.adapters):
        return []
    groups = zip(plan.adapters, plan.layout.groups, strict=True)
    tokens = {
        adapter: sum(group.num_tokens for _, group in members)
        for adapter, members in groupby(groups, key=lambda each: each[0])
    }
    reads, _ = np.histogram(read_at, bounds_of([*tokens.values()]))
    return [Adapted(*part) for part in zip(tokens, tokens.values(), reads.tolist(), strict=True)]

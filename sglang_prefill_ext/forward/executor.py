"""Run one planned forward, eagerly or as a graph: upload, model, packed attention, read-out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sglang_prefill_ext.attention.dense import DenseAttention
from sglang_prefill_ext.attention.kernels import multiprocessors
from sglang_prefill_ext.attention.kernels_by_heads import kernel_attention
from sglang_prefill_ext.attention.way import kernel_way
from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.forward.graphs.plan import GraphUse
from sglang_prefill_ext.forward.graphs.replay import PackedGraphs
from sglang_prefill_ext.forward.layers import Attention, LayerAttention
from sglang_prefill_ext.forward.model import Model, Overrides
from sglang_prefill_ext.forward.readers.labels import LabelReader
from sglang_prefill_ext.forward.readers.vectors import VectorReader
from sglang_prefill_ext.forward.upload import ForwardCompletion, upload
from sglang_prefill_ext.layout.recurrence_plan import RecurrencePlan
from sglang_prefill_ext.layout.tokens import ForwardLayout
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
    """

    def __init__(
        self,
        model: Model,
        *,
        readout_bytes: int,
        attention: AttentionWay = AttentionWay.TORCH,
        caches_prefixes: bool = False,
    ) -> None:
        self._model = model
        self._way = attention
        # A graph would make keys and values of as many latents as its page table may name.
        replays = caches_prefixes and not model.pool.keeps_latents
        self._graphs = PackedGraphs(model, attention, model.pool if replays else None)
        self._replays = True
        self._reader: LabelReader | VectorReader
        self.chunk_reads = 0
        """Reads in one chunk of logits over the vocabulary; 0 if the model makes vectors."""
        if model.vector_width:
            self._reader = VectorReader(model.vector_width, unit_length=model.unit_length)
        else:
            if model.device.type == "cpu":
                readout_bytes = min(readout_bytes, _CPU_CACHE_BYTES)
            self.chunk_reads = max(1, readout_bytes // (4 * model.vocab_size))
            self._reader = LabelReader(
                model,
                max_rows=self.chunk_reads,
                kernels=attention is not AttentionWay.TORCH,
            )

    @property
    def asynchronous(self) -> bool:
        return self._model.asynchronous

    @property
    def attention(self) -> AttentionWay:
        """How attention is computed."""
        return self._way

    @property
    def causal(self) -> bool:
        """See `Model`."""
        return self._model.causal

    @property
    def longest_prompt(self) -> int | None:
        """See `Model`."""
        return self._model.longest_prompt

    @property
    def vocab_size(self) -> int:
        """See `Model`."""
        return self._model.vocab_size

    @property
    def vector_width(self) -> int:
        """See `Model`."""
        return self._model.vector_width

    @property
    def recurrent(self) -> bool:
        """Whether the model has recurrent layers."""
        return self._model.recurrence is not None

    @property
    def widths(self) -> tuple[int, int]:
        """Vector and state width, see `Model`."""
        return self._model.vector_width, self._model.state_width

    @property
    def graph_use(self) -> GraphUse:
        return self._graphs.use

    def capture_graphs(self, max_tokens: int) -> None:
        """From now on, replay forwards of up to `max_tokens` tokens as graphs, if possible."""
        self._graphs.capture(max_tokens)

    @contextmanager
    def eagerly(self) -> Iterator[None]:
        """Run all forwards eagerly meanwhile, without counting them."""
        self._replays = False
        try:
            yield
        finally:
            self._replays = True

    def stop_replays(self, why: str) -> None:
        """From now on, run all forwards eagerly; graphs keep their memory."""
        if self.graph_use.sizes:
            self._graphs.give_up(why)

    def forget_graphs(self) -> None:
        """From now on, run all forwards eagerly, and free the memory of graphs."""
        self._graphs = PackedGraphs(self._model, self._way)

    @torch.inference_mode()
    def launch(
        self,
        plan: ForwardPlan,
        held: Sequence[Tensor | None],
        stores: Sequence[Tensor | None],
    ) -> ForwardCompletion:
        """Launch the forward, its read-out and the copy of its values to the host.

        Args:
            held, stores: see `PrefixedForward`.

        Raises:
            RuntimeError: raised by torch, e.g. when memory is exhausted; no memory is kept.
        """
        if not self._model.causal:
            plan = replace(plan, layout=replace(plan.layout, causal=False))
        with self._model.stream():
            hidden = None
            if self._replays and self._graphs.asked:
                hidden = self._graphs.run(plan, held, stores)
            if hidden is None:
                hidden = self._run_eagerly(plan, held, stores)
            return ForwardCompletion(self._reader.read(hidden, plan))

    def _run_eagerly(
        self,
        plan: ForwardPlan,
        held: Sequence[Tensor | None],
        stores: Sequence[Tensor | None],
    ) -> Tensor:
        """Run a forward kernel by kernel; return the output of `Model.prepare` at the reads."""
        layout, model = plan.layout, self._model
        attention = self._attention(layout)
        ends_only = layout.reads_row_ends
        reads = layout.last_layer_queries() if ends_only else layout.read_positions()
        arrays: list[NDArray[np.generic]] = [plan.token_ids.astype(np.int64)]
        arrays += [layout.positions(), reads]
        recurrence = self._recurrence(layout, stores)
        planned = attention.host_arrays()
        recurrent_arrays = recurrence.host_arrays() if recurrence else ()
        arrays += [*planned, *recurrent_arrays]
        if len(plan.override_at):
            arrays += [plan.override_at, plan.overrides]
        tokens, positions, read_at, *rest = upload(arrays, model.device)
        left = iter(rest)
        of_attention = list(islice(left, len(planned)))
        if recurrence:
            recurrence.bind(list(islice(left, len(recurrent_arrays))))
        overrides = list(left)
        last_layer = model.last_layer if ends_only else None
        attend = LayerAttention(plan, attention, held, stores, last_layer, model.pool)
        attention.bind(of_attention, attend.page_table(model.device))
        run = model.prepare(
            tokens,
            positions,
            read_at,
            _row_lens(layout),
            attend,
            Overrides(*overrides) if overrides else None,
            plan.adapter,
            shortened=ends_only,
            recur=recurrence,
        )
        return run()[: len(plan.reads)]

    def _recurrence(
        self, layout: ForwardLayout, stores: Sequence[Tensor | None]
    ) -> LayerRecurrence | None:
        recurrence = self._model.recurrence
        if recurrence is None:
            return None
        stored = next((at for at, slots in enumerate(stores) if slots is not None), None)
        plan = RecurrencePlan(layout, recurrence, stored)
        kernels = self._way is not AttentionWay.TORCH
        return LayerRecurrence(plan, self._model.pool.states, kernels=kernels)

    def _attention(self, layout: ForwardLayout) -> Attention:
        model = self._model
        if self._way is AttentionWay.TORCH:
            return DenseAttention(layout, model.device)
        way = kernel_way(self._way, layout)
        return kernel_attention(
            *(layout, way, model.heads, model.dtype, model.device),
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

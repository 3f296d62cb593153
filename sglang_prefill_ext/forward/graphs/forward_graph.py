"""One CUDA graph of a packed forward: its inputs lie at fixed addresses, and have fixed sizes.

So do the slots of the KV pool that it reads and writes, which all graphs share.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sglang_prefill_ext.attention.inputs import HeldKV, LayerInputs
from sglang_prefill_ext.attention.kernels import KernelAttention
from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.forward.graphs.capture import Capture
from sglang_prefill_ext.forward.graphs.plan import pad, padded
from sglang_prefill_ext.forward.kv_pool import KVPool
from sglang_prefill_ext.forward.layers import held_slots
from sglang_prefill_ext.forward.model import Model
from sglang_prefill_ext.forward.upload import Groups, flat, in_groups, in_one_buffer, tensors_in
from sglang_prefill_ext.layout.recurrence_parts import Room
from sglang_prefill_ext.layout.recurrence_plan import RecurrencePlan
from sglang_prefill_ext.layout.tokens import ForwardLayout, GroupSpan
from sglang_prefill_ext.recurrent.layers import LayerRecurrence
from sglang_prefill_ext.scheduling.graph_room import groups_of, states_of
from sglang_prefill_ext.scheduling.planner import ForwardPlan

HELD_TOKENS = 1 << 14
"""Entries of the page table. With more held tokens, attention takes the device longer than eager
launches take the host, so a replay would save nothing."""


class GraphSlots:
    """The slots that a replayed forward reads and writes; all graphs share these arrays.

    Args:
        tokens: of the largest graph.

    Attributes:
        page_table: int32 `[HELD_TOKENS]`: the slots of all held prefixes, group after group.
    """

    def __init__(self, pool: KVPool, tokens: int, device: torch.device) -> None:
        self.page_table = torch.zeros(HELD_TOKENS, dtype=torch.int32, device=device)
        self._pool = pool
        self._stores, self._nobodys = torch.zeros((2, tokens), dtype=torch.int64, device=device)
        self._num_stores = 0

    def bring(self, plan: ForwardPlan) -> None:
        """Write a forward's slots for the next replay; launches nothing if there are none."""
        held = held_slots(plan.held)
        if held is not None:
            self.page_table[: len(held)].copy_(held)
        parts: list[Tensor] = []
        end = 0
        for start, slots in zip(plan.layout.group_starts.tolist(), plan.stores, strict=True):
            if slots is not None:
                parts += [self._nobodys[: start - end], slots]
                end = start + len(slots)
        stop = max(end, self._num_stores)  # also overwrite the slots of the forward before
        if stop:
            parts.append(self._nobodys[: stop - end])
            torch.cat(parts, out=self._stores[:stop])
        self._num_stores = end

    def exchange(self, layer: int, k: Tensor, v: Tensor) -> HeldKV:
        """Store K/V of all tokens of a layer, then return the layer's buffers in the pool.

        K/V that are not kept go to slot 0. This runs within a capture.
        """
        self._pool.store(layer, self._stores[: len(k)], k, v)
        return self._pool.buffers(layer)


class ForwardGraph:
    """One graph: replays every forward for which it has room, see `graph_holds`.

    In a graph all tokens pass through the whole last layer, the final norm and, if there is one,
    the head that makes vectors, since any of them may be read. So the last layer's attention is
    computed like that of other layers, and all that follows for more tokens than in an eager
    forward.

    Args:
        tokens: of the padded forward, >= 1.
        slots: how the graph reads and writes the KV pool; None: nothing is held or stored.

    Raises:
        RuntimeError: see `Capture`.
    """

    def __init__(
        self,
        tokens: int,
        model: Model,
        way: AttentionWay,
        capture: Capture,
        slots: GraphSlots | None,
    ) -> None:
        self.tokens = tokens
        self._model = model
        self._way = way
        one_token = ForwardLayout((GroupSpan(0, 0, np.ones(1, np.int32)),), causal=model.causal)
        arrays, attention, recurrence = self._inputs(one_token, np.zeros(1, np.int32))
        self._buffer = in_one_buffer(flat(arrays), pinned=False).to(model.device)
        tensors = in_groups(tensors_in(self._buffer, flat(arrays)), arrays)
        (ids, positions, self._read_at), of_attention, of_recurrence = tensors
        attention.bind(of_attention, None if slots is None else slots.page_table)
        if recurrence is not None:
            recurrence.bind(of_recurrence)

        def attend(layer: int, inputs: LayerInputs) -> Tensor:
            cached = None if slots is None else slots.exchange(layer, inputs.k, inputs.v)
            return attention.forward(inputs, cached)

        work = model.prepare(
            *(ids, positions, torch.arange(tokens, device=model.device), [tokens], attend),
            shortened=True,
            recur=recurrence,
        )
        self._replay = capture(work)

    def run(self, plan: ForwardPlan) -> Tensor:
        """Replay the graph; return hidden states (or vectors) at the reads, as a copy."""
        groups, _, _ = self._inputs(plan.layout, plan.token_ids)
        arrays = flat(groups)
        on_cuda = self._model.device.type == "cuda"
        # The replay before this one reads the same buffer; both are on one stream, so in order.
        self._buffer.copy_(in_one_buffer(arrays, pinned=on_cuda), non_blocking=True)
        return self._replay()[self._read_at[: len(plan.reads)]]

    def _inputs(
        self, layout: ForwardLayout, token_ids: NDArray[np.int32]
    ) -> tuple[Groups, KernelAttention, LayerRecurrence | None]:
        """All that the graph reads of a forward: arrays of tokens, of attention, of recurrence."""
        model, recurrence = self._model, self._recurrence(layout)
        layout, ids, read_at = pad(layout, token_ids, self.tokens)
        attention = KernelAttention(
            *(layout, self._way, model.heads, model.dtype, model.device),
            most_groups=groups_of(self.tokens) + 1,  # one more for padding
        )
        of_recurrence = recurrence.host_arrays() if recurrence is not None else ()
        tokens = [ids, layout.positions(), read_at]
        groups: Groups = [tokens, attention.host_arrays(), of_recurrence]
        return groups, attention, recurrence

    def _recurrence(self, layout: ForwardLayout) -> LayerRecurrence | None:
        if self._model.recurrence is None:
            return None
        prefixes, rows = states_of(self.tokens)
        room = Room.within(self.tokens, prefixes, rows + 1)  # one more for padding
        layout = padded(layout, self.tokens, in_one_row=True)
        plan = RecurrencePlan(layout, self._model.recurrence, room=room)
        return LayerRecurrence(plan, {}, kernels=True)

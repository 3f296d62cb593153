"""Capture graphs of small packed forwards, choose the one for a forward, and replay it.

The model's layers with their attention are captured, for a few sizes. A graph reads a forward from
a few integer arrays of fixed sizes; one transfer replaces their contents before a replay. The
read-out, whose size depends on the reads, runs eagerly after it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sglang_prefill_ext.attention.inputs import LayerInputs
from sglang_prefill_ext.attention.kernels_by_heads import kernel_attention
from sglang_prefill_ext.attention.prefix_libraries import LIBRARIES
from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.forward.graphs.capture import Capture, capture_for
from sglang_prefill_ext.forward.graphs.plan import (
    NO_GRAPHS,
    REPLAYED,
    Bucket,
    GraphUse,
    buckets_up_to,
    eager_reason,
    pad,
)
from sglang_prefill_ext.forward.graphs.slots import HELD_TOKENS, GraphSlots
from sglang_prefill_ext.forward.kv_pool import KVPool
from sglang_prefill_ext.forward.layers import Attention
from sglang_prefill_ext.forward.memory import kept_bytes
from sglang_prefill_ext.forward.model import Model
from sglang_prefill_ext.forward.upload import in_one_buffer, tensors_in
from sglang_prefill_ext.layout.tokens import ForwardLayout, GroupSpan
from sglang_prefill_ext.scheduling.planner import ForwardPlan

logger = logging.getLogger(__name__)

_GRAPH_WAYS = {AttentionWay.AUTO: AttentionWay.FUSED} | dict.fromkeys(LIBRARIES, AttentionWay.MERGE)


class PackedGraphs:
    """The graphs of a model, and the choice among them; there are none before `capture`.

    Args:
        attention: that of eager forwards. Graphs use FUSED instead of AUTO, and MERGE instead of a
            library, whose calls are planned on the host.
        pool: in which prefixes are cached; None: forwards with held or stored prefixes run eagerly.

    Attributes:
        asked: whether `capture` was called.
    """

    def __init__(self, model: Model, attention: AttentionWay, pool: KVPool | None = None) -> None:
        self.use = GraphUse()
        self._model = model
        self._way = _GRAPH_WAYS.get(attention, attention)
        self._pool = pool
        self._slots: GraphSlots | None = None
        self.asked = False
        self._graphs: list[ForwardGraph] = []

    def run(
        self, plan: ForwardPlan, held: Sequence[Tensor | None], stores: Sequence[Tensor | None]
    ) -> Tensor | None:
        """Replay a forward on the current stream, if a graph holds it; graphs must be `asked` for.

        Call it in inference mode. After a replay that fails, this forward and all later ones run
        eagerly.

        Args:
            held, stores: see `PrefixedForward`.

        Returns:
            The output of `Model.prepare` at the reads; None: run the forward eagerly.
        """
        reason, graph = self._choice(plan, stores)
        hidden = None
        if graph is not None:
            try:
                if self._slots is not None:
                    self._slots.bring(plan.layout, held, stores)
                hidden = graph.run(plan)
            except Exception as failure:
                reason = NO_GRAPHS
                self.give_up(f"a replay failed: {_said(failure)}", failure)
        self.use.forwards[reason] += 1
        return hidden

    def capture(self, max_tokens: int) -> None:
        """Capture graphs of all sizes up to `max_tokens` >= 1; `use.obstacle` says if it failed."""
        self.asked = True
        start_s, device = time.monotonic(), self._model.device
        if self._way is AttentionWay.TORCH:
            self.give_up("attention by torch plans its calls on the host")
        elif self._model.recurrence is not None:
            self.give_up("the kernels of recurrent layers are launched by the lengths of prompts")
        else:
            buckets, capture = buckets_up_to(max_tokens), capture_for(device)
            self.use.bytes = kept_bytes(device, lambda: self._try_capture(buckets, capture))
        self.use.seconds = time.monotonic() - start_s
        if not self.use.obstacle:
            logger.info("Prefill-only serving: captured %s", self.use)

    def give_up(self, obstacle: str, failure: Exception | None = None) -> None:
        """Replay no graph any more; `obstacle` says why, and the traceback of `failure` is logged.

        Captured graphs keep their memory, as kernels that still run may use it. Calibration did not
        count that memory as free.
        """
        self.use.obstacle = obstacle
        self.use.sizes = ()
        line = "Packed forwards run eagerly, without CUDA graphs, because %s"
        logger.error(line, obstacle, exc_info=failure)

    @torch.inference_mode()
    def _try_capture(self, buckets: Sequence[Bucket], capture: Capture) -> None:
        try:
            with self._model.stream():
                model, kind = self._model, (self._way, capture)
                if self._pool is not None:
                    self._slots = GraphSlots(self._pool, buckets[-1].tokens, model.device)
                # The largest first: the smaller ones then fit into its memory pool.
                for bucket in reversed(buckets):
                    self._graphs.insert(0, ForwardGraph(bucket, model, *kind, self._slots))
        except Exception as failure:
            # Models, compilers and drivers raise all kinds of errors; all mean: no graphs.
            self._graphs.clear()
            self.give_up(f"the capture of {[*buckets]} failed: {_said(failure)}", failure)
        self.use.sizes = tuple(graph.bucket.tokens for graph in self._graphs)

    def _choice(
        self, plan: ForwardPlan, stores: Sequence[Tensor | None]
    ) -> tuple[str, ForwardGraph | None]:
        """Return `REPLAYED` and the smallest graph that holds a forward, or why it runs eagerly."""
        if self.use.obstacle:
            return NO_GRAPHS, None
        pooled = self._slots is not None
        stores_outside = not pooled and any(store is not None for store in stores)
        most_held = HELD_TOKENS if pooled else 0
        reason = eager_reason(plan, most_held=most_held, stores=stores_outside)
        if reason:
            return reason, None
        graph = next((one for one in self._graphs if one.bucket.holds(plan.layout)), None)
        return (REPLAYED, graph) if graph is not None else ("too_large", None)


def _said(failure: Exception) -> str:
    """The type and text of an exception, on one line."""
    return " ".join(f"{type(failure).__name__}: {failure}".split())


class ForwardGraph:
    """One graph: replays every forward that its bucket holds.

    Args:
        slots: how the graph reads and writes the KV pool; None: nothing is held or stored.

    Raises:
        RuntimeError: see `Capture`.
    """

    def __init__(
        self,
        bucket: Bucket,
        model: Model,
        way: AttentionWay,
        capture: Capture,
        slots: GraphSlots | None,
    ) -> None:
        self.bucket = bucket
        self._model = model
        self._way = way
        one_token = ForwardLayout((GroupSpan(0, 0, np.ones(1, np.int32)),), causal=model.causal)
        attention, arrays = self._inputs(one_token, np.zeros(1, np.int32))
        self._buffer = in_one_buffer(arrays, pinned=False).to(model.device)
        tokens, positions, self._read_at, *rest = tensors_in(self._buffer, arrays)
        attention.bind(rest, None if slots is None else slots.page_table)

        def attend(layer: int, inputs: LayerInputs) -> Tensor:
            cached = None if slots is None else slots.exchange(layer, inputs.k, inputs.v)
            return attention.forward(inputs, cached)

        everything = torch.arange(bucket.tokens, device=model.device)
        work = model.prepare(tokens, positions, everything, [bucket.tokens], attend, shortened=True)
        self._replay = capture(work)

    def run(self, plan: ForwardPlan) -> Tensor:
        """Replay the graph; return hidden states (or vectors) at the reads, as a copy."""
        _, arrays = self._inputs(plan.layout, plan.token_ids)
        on_cuda = self._model.device.type == "cuda"
        # The replay before this one reads the same buffer; both are on one stream, so in order.
        self._buffer.copy_(in_one_buffer(arrays, pinned=on_cuda), non_blocking=True)
        return self._replay()[self._read_at[: len(plan.reads)]]

    def _inputs(
        self, layout: ForwardLayout, token_ids: NDArray[np.int32]
    ) -> tuple[Attention, list[NDArray[np.generic]]]:
        """The attention of a padded forward, and all arrays that the graph reads of it."""
        model = self._model
        layout, ids, read_at = pad(layout, token_ids, self.bucket)
        attention = kernel_attention(
            layout,
            self._way,
            model.heads,
            model.dtype,
            model.device,
            most_groups=self.bucket.groups + 1,  # one more for padding
        )
        return attention, [ids, layout.positions(), read_at, *attention.host_arrays()]

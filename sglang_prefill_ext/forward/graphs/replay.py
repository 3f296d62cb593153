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
from sglang_prefill_ext.attention.kernels import KernelAttention
from sglang_prefill_ext.attention.prefix_libraries import LIBRARIES
from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.forward.graphs.capture import Capture, capture_for
from sglang_prefill_ext.forward.graphs.plan import (
    NO_GRAPHS,
    REPLAYED,
    GraphUse,
    eager_reason,
    pad,
    sizes_up_to,
)
from sglang_prefill_ext.forward.graphs.slots import HELD_TOKENS, GraphSlots
from sglang_prefill_ext.forward.kv_pool import KVPool
from sglang_prefill_ext.forward.layers import Attention
from sglang_prefill_ext.forward.memory import kept_bytes
from sglang_prefill_ext.forward.model import Model
from sglang_prefill_ext.forward.upload import in_one_buffer, tensors_in
from sglang_prefill_ext.layout.tokens import ForwardLayout, GroupSpan
from sglang_prefill_ext.scheduling.budget import graph_holds, groups_of
from sglang_prefill_ext.scheduling.planner import ForwardPlan

logger = logging.getLogger(__name__)

_GRAPH_WAYS = dict.fromkeys(LIBRARIES, AttentionWay.MERGE)


class PackedGraphs:
    """The graphs of a model, captured when this is made, and the choice among them.

    Args:
        attention: that of eager forwards. Graphs use MERGE instead of a library, whose calls are
            planned on the host.
        pool: in which prefixes are cached; None: forwards with held or stored prefixes run eagerly.
        use: kept up to date; its `obstacle` says if the capture failed.
        max_tokens: of the largest graph, >= 1.
    """

    def __init__(
        self,
        model: Model,
        attention: AttentionWay,
        pool: KVPool | None,
        use: GraphUse,
        max_tokens: int,
    ) -> None:
        self._use = use
        self._model = model
        self._way = _GRAPH_WAYS.get(attention, attention)
        self._slots: GraphSlots | None = None
        self._graphs: list[ForwardGraph] = []
        begin_s = time.monotonic()
        if self._way is AttentionWay.TORCH:
            self.give_up("attention by torch plans its calls on the host")
        elif model.recurrence is not None:
            self.give_up("the kernels of recurrent layers are launched by the lengths of prompts")
        else:
            sizes = sizes_up_to(max_tokens)
            use.bytes = kept_bytes(model.device, lambda: self._try_capture(sizes, pool))
        use.seconds = time.monotonic() - begin_s
        if not use.obstacle:
            logger.info("Prefill-only serving: captured %s", use)

    def run(self, plan: ForwardPlan) -> Tensor | None:
        """Replay a forward on the current stream, if a graph holds it.

        Call it in inference mode. After a replay that fails, this forward and all later ones run
        eagerly.

        Returns:
            The output of `Model.prepare` at the reads; None: run the forward eagerly.
        """
        reason, graph = self._choice(plan)
        hidden = None
        if graph is not None:
            try:
                if self._slots is not None:
                    self._slots.bring(plan)
                hidden = graph.run(plan)
            except Exception as failure:
                reason = NO_GRAPHS
                self.give_up(f"a replay failed: {_said(failure)}", failure)
        self._use.forwards[reason] += 1
        return hidden

    def give_up(self, obstacle: str, failure: Exception | None = None) -> None:
        """Replay no graph any more; `obstacle` says why, and the traceback of `failure` is logged.

        Captured graphs keep their memory, as kernels that still run may use it. Calibration did not
        count that memory as free.
        """
        self._use.obstacle = obstacle
        self._use.sizes = ()
        line = "Packed forwards run eagerly, without CUDA graphs, because %s"
        logger.error(line, obstacle, exc_info=failure)

    @torch.inference_mode()
    def _try_capture(self, sizes: Sequence[int], pool: KVPool | None) -> None:
        try:
            model, capture = self._model, capture_for(self._model.device)
            with model.stream():
                if pool is not None:
                    self._slots = GraphSlots(pool, sizes[-1], model.device)
                # The largest first: the smaller ones then fit into its memory pool.
                for tokens in reversed(sizes):
                    graph = ForwardGraph(tokens, model, self._way, capture, self._slots)
                    self._graphs.insert(0, graph)
        except Exception as failure:
            # Models, compilers and drivers raise all kinds of errors; all mean: no graphs.
            self._graphs.clear()
            self.give_up(f"the capture of {[*sizes]} tokens failed: {_said(failure)}", failure)
        self._use.sizes = tuple(graph.tokens for graph in self._graphs)

    def _choice(self, plan: ForwardPlan) -> tuple[str, ForwardGraph | None]:
        """Return `REPLAYED` and the smallest graph that holds a forward, or why it runs eagerly."""
        if self._use.obstacle:
            return NO_GRAPHS, None
        reason = eager_reason(plan, most_held=HELD_TOKENS if self._slots is not None else 0)
        if reason:
            return reason, None
        size = plan.num_tokens, len(plan.layout.groups)
        graph = next((one for one in self._graphs if graph_holds(one.tokens, *size)), None)
        return (REPLAYED, graph) if graph is not None else ("too_large", None)


def _said(failure: Exception) -> str:
    """The type and text of an exception, on one line."""
    return " ".join(f"{type(failure).__name__}: {failure}".split())


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
        attention, arrays = self._inputs(one_token, np.zeros(1, np.int32))
        self._buffer = in_one_buffer(arrays, pinned=False).to(model.device)
        ids, positions, self._read_at, *rest = tensors_in(self._buffer, arrays)
        attention.bind(rest, None if slots is None else slots.page_table)

        def attend(layer: int, inputs: LayerInputs) -> Tensor:
            cached = None if slots is None else slots.exchange(layer, inputs.k, inputs.v)
            return attention.forward(inputs, cached)

        everything = torch.arange(tokens, device=model.device)
        work = model.prepare(ids, positions, everything, [tokens], attend, shortened=True)
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
        layout, ids, read_at = pad(layout, token_ids, self.tokens)
        attention = KernelAttention(
            layout,
            self._way,
            model.heads,
            model.dtype,
            model.device,
            most_groups=groups_of(self.tokens) + 1,  # one more for padding
        )
        return attention, [ids, layout.positions(), read_at, *attention.host_arrays()]

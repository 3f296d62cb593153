"""Capture graphs of small packed forwards, choose the one for a forward, and replay it.

The model's layers with their attention are captured, for a few sizes. A graph reads a forward from
a few integer arrays of fixed sizes; one transfer replaces their contents before a replay. The
read-out, whose size depends on the reads, runs eagerly after it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from itertools import chain

import torch
from torch import Tensor

from sglang_prefill_ext.attention.prefix_libraries import LIBRARIES
from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.forward.device import OneRankError
from sglang_prefill_ext.forward.graphs.capture import capture_for
from sglang_prefill_ext.forward.graphs.forward_graph import HELD_TOKENS, ForwardGraph, GraphSlots
from sglang_prefill_ext.forward.graphs.plan import (
    NO_GRAPHS,
    REPLAYED,
    GraphUse,
    eager_reason,
    sizes_up_to,
)
from sglang_prefill_ext.forward.kv_pool import KVPool
from sglang_prefill_ext.forward.memory import kept_bytes
from sglang_prefill_ext.forward.model import Model
from sglang_prefill_ext.layout.recurrence_plan import carries_states
from sglang_prefill_ext.scheduling.graph_room import ForwardSize, graph_holds
from sglang_prefill_ext.scheduling.planner import ForwardPlan

logger = logging.getLogger(__name__)


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
        self._way = AttentionWay.MERGE if attention in LIBRARIES else attention
        self._slots: GraphSlots | None = None
        self._graphs: list[ForwardGraph] = []
        begin_s = time.monotonic()
        obstacle = _obstacle(model, self._way)
        if obstacle:
            self.give_up(obstacle)
        else:
            sizes = sizes_up_to(max_tokens)
            use.bytes = kept_bytes(model.device, lambda: self._try_capture(sizes, pool))
        use.seconds = time.monotonic() - begin_s
        if not use.obstacle:
            logger.info("Prefill-only serving: captured %s", use)

    @property
    def most_held(self) -> int:
        """Tokens of held prefixes that graphs can read; 0: they neither read nor write the pool."""
        return HELD_TOKENS if self._slots is not None else 0

    def run(self, plan: ForwardPlan, *, counted: bool = False) -> Tensor | None:
        """Replay a forward on the current stream, if a graph holds it.

        Call it in inference mode. After a replay that fails, this forward and all later ones run
        eagerly, if this is the only rank.

        Args:
            counted: the routing of its experts is counted, which no replay can do.

        Returns:
            The output of `Model.prepare` at the reads; None: run the forward eagerly.

        Raises:
            OutOfMemoryError: there is no memory for slots or a copy of the result.
            OneRankError: the replay failed otherwise, and there are other ranks.
        """
        reason, graph = ("counted", None) if counted else self._choice(plan)
        hidden = None
        if graph is not None:
            try:
                if self._slots is not None:
                    self._slots.bring(plan)
                hidden = graph.run(plan)
            except torch.OutOfMemoryError:
                raise  # memory was short beside the graphs, which need none: others may be replayed
            except Exception as failure:
                reason = NO_GRAPHS
                self._failed("a replay", failure)
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

    def _failed(self, what: str, failure: Exception) -> None:
        """Go on without graphs; if there are other ranks, raise, as they would go on with them."""
        why = f"{what} failed: {_said(failure)}"
        if not self._model.alone:
            raise OneRankError(why) from failure
        self.give_up(why, failure)

    @torch.inference_mode()
    def _try_capture(self, sizes: Sequence[int], pool: KVPool | None) -> None:
        try:
            model, capture = self._model, capture_for(self._model.device)
            with model.stream(), model.capturing():
                if pool is not None:
                    self._slots = GraphSlots(pool, sizes[-1], model.device)
                # The largest first: the smaller ones then fit into its memory pool.
                for tokens in reversed(sizes):
                    graph = ForwardGraph(tokens, model, self._way, capture, self._slots)
                    self._graphs.insert(0, graph)
        except Exception as failure:
            # Models, compilers and drivers raise all kinds of errors; all mean: no graphs.
            self._graphs.clear()
            self._failed(f"the capture of {[*sizes]} tokens", failure)
        self._use.sizes = tuple(graph.tokens for graph in self._graphs)

    def _choice(self, plan: ForwardPlan) -> tuple[str, ForwardGraph | None]:
        """Return `REPLAYED` and the smallest graph that holds a forward, or why it runs eagerly."""
        if self._use.obstacle:
            return NO_GRAPHS, None
        reason = eager_reason(plan, most_held=self.most_held)
        if reason:
            return reason, None
        size, carries = ForwardSize.of(plan.layout.groups), carries_states(self._model.recurrence)
        for graph in self._graphs:
            if graph_holds(graph.tokens, size, carries=carries):
                return REPLAYED, graph
        return "too_large", None


def look_at_weights(
    model: torch.nn.Module, stop: Callable[[str], None], agree: Callable[[list[int]], list[int]]
) -> Callable[[], None]:
    """Return a function that calls `stop` if the address of any weight has changed since this call.

    Graphs read weights at the addresses of their capture. SGLang mostly overwrites weights in
    place, but allocates some anew, such as those that it quantises.

    Args:
        agree: returns the largest of each number over all ranks, which all stop if one has to.
    """

    def places() -> list[int]:
        return [each.data_ptr() for each in chain(model.parameters(), model.buffers())]

    captured = places()

    def look() -> None:
        (moved,) = agree([int(places() != captured)])
        if moved:
            stop("an update has put weights elsewhere in memory")

    return look


def _obstacle(model: Model, way: AttentionWay) -> str:
    """Return why no graph can run a model; empty if there is no reason known before a capture."""
    if way is AttentionWay.TORCH:
        return "attention by torch plans its calls on the host"
    if model.recurrence is not None and not model.recurrence.is_replayable:
        return "the kernels of Mamba-2 are launched by where prompts begin"
    in_torch = model.device.type == "cuda" and model.dtype == torch.float32
    if in_torch and carries_states(model.recurrence):
        return "in float32 torch computes states, by the lengths of prompts"
    return ""


def _said(failure: Exception) -> str:
    """The type and text of an exception, on one line."""
    return " ".join(f"{type(failure).__name__}: {failure}".split())

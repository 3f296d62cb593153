"""Small packed forwards as graphs: one launch instead of some hundred.

The model's layers and their attention are captured, for a few sizes. All that they read of a
forward is a few integer arrays of fixed size, which one transfer replaces before a replay. The
read-out, whose size depends on what is asked, runs eagerly behind it.
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
from sglang_prefill_ext.attention.libraries import LIBRARIES
from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.oneshot.capture import Capture, capture_for
from sglang_prefill_ext.oneshot.graph_plan import (
    Bucket,
    PaddedForward,
    buckets_up_to,
    eager_reason,
    pad,
)
from sglang_prefill_ext.oneshot.graph_use import REPLAYED, GraphUse
from sglang_prefill_ext.oneshot.layout import ForwardLayout, GroupSpan
from sglang_prefill_ext.oneshot.memory import kept_bytes
from sglang_prefill_ext.oneshot.model import Model
from sglang_prefill_ext.oneshot.planner import ForwardPlan
from sglang_prefill_ext.oneshot.upload import in_one_buffer, tensors_in

logger = logging.getLogger(__name__)

_GRAPH_WAYS = {AttentionWay.AUTO: AttentionWay.FUSED} | dict.fromkeys(LIBRARIES, AttentionWay.MERGE)


class PackedGraphs:
    """The graphs of a model, and the choice among them; none until they are captured.

    Args:
        attention: of eager forwards. Graphs have FUSED where it is AUTO, and MERGE where a library
            shares in it, whose calls are planned on the host.
    """

    def __init__(self, model: Model, attention: AttentionWay) -> None:
        self.use = GraphUse()
        self._model = model
        self._way = _GRAPH_WAYS.get(attention, attention)
        self._asked = False
        self._graphs: list[ForwardGraph] = []

    def run(
        self, plan: ForwardPlan, held: Sequence[object | None], stores: Sequence[object | None]
    ) -> Tensor | None:
        """Replay a forward, on the current stream and in inference mode.

        Returns:
            What `Model.prepare` makes of the rows' ends; None: the forward is to be run eagerly.
        """
        if not self._asked:
            return None
        reason, graph = eager_reason(plan, held, stores), None
        if self.use.obstacle:
            reason = "no_graphs"
        elif not reason:
            graph = next((one for one in self._graphs if one.bucket.holds(plan.layout)), None)
            reason = "too_large" if graph is None else REPLAYED
        self.use.forwards[reason] += 1
        return None if graph is None else graph.run(plan)

    def capture(self, max_tokens: int) -> None:
        """Capture all sizes up to `max_tokens`, at least 1. `use.obstacle` says what went wrong.

        None is larger than the longest prompt, as a row of padding may be as long as its graph.
        """
        largest = min(max_tokens, self._model.longest_prompt or max_tokens)
        self._asked = True
        start_s, device = time.monotonic(), self._model.device
        if self._way is AttentionWay.TORCH:
            self.use.obstacle = "attention by torch plans its calls on the host"
        elif not self._model.causal:
            self.use.obstacle = "SGLang's encoders read the lengths of prompts on the host"
        else:
            with kept_bytes(device) as kept:
                self._try_capture(buckets_up_to(largest), capture_for(device))
            self.use.bytes = kept.bytes
        self.use.sizes = tuple(graph.bucket.tokens for graph in self._graphs)
        self.use.seconds = time.monotonic() - start_s
        if self.use.obstacle:
            logger.error(
                "--prefill-only-cuda-graphs %d: no graph, because %s. Packed forwards run eagerly.",
                max_tokens,
                self.use.obstacle,
            )
        else:
            logger.info("Prefill-only serving: captured %s", self.use)

    @torch.inference_mode()
    def _try_capture(self, buckets: Sequence[Bucket], capture: Capture) -> None:
        try:
            with self._model.stream():
                # In the memory of the largest one, the others find room.
                for bucket in reversed(buckets):
                    self._graphs.insert(0, ForwardGraph(bucket, self._model, self._way, capture))
        except Exception as failure:
            # Models, compilers and drivers fail in any way; each means that there are no graphs.
            logger.exception("Packed forwards of %s cannot be captured", [*buckets])
            self._graphs.clear()
            self.use.obstacle = f"the capture failed: {type(failure).__name__}: {failure}"


class ForwardGraph:
    """Forwards of up to the size of a bucket, captured once.

    Raises:
        RuntimeError: see `Capture`.
    """

    def __init__(self, bucket: Bucket, model: Model, way: AttentionWay, capture: Capture) -> None:
        self.bucket = bucket
        self._model = model
        self._way = way
        one_token = ForwardLayout((GroupSpan(0, 0, np.ones(1, np.int32)),))
        attention, arrays = self._inputs(pad(one_token, np.zeros(1, np.int32), bucket))
        self._buffer = in_one_buffer(arrays, pinned=False).to(model.device)
        tokens, positions, reads, self._places, *rest = tensors_in(self._buffer, arrays)
        attention.bind(rest)

        def attend(layer: int, inputs: LayerInputs) -> Tensor:
            is_last = layer == model.last_layer
            return (attention.read if is_last else attention.forward)(inputs, None)

        work = model.prepare(tokens, positions, reads, [bucket.tokens], attend, shortened=True)
        self._replay = capture.capture(work)

    def run(self, plan: ForwardPlan) -> Tensor:
        """Hidden states (or vectors) of the rows' ends, a tensor of their own."""
        _, arrays = self._inputs(pad(plan.layout, plan.token_ids, self.bucket))
        on_cuda = self._model.device.type == "cuda"
        # In order with the replay before it, which reads the same buffer, as all are on one stream.
        self._buffer.copy_(in_one_buffer(arrays, pinned=on_cuda), non_blocking=True)
        return self._replay()[self._places[: plan.num_reads]]

    def _inputs(self, padded: PaddedForward) -> tuple[KernelAttention, list[NDArray[np.generic]]]:
        """The attention of a forward, and all arrays that are read of it."""
        model = self._model
        attention = KernelAttention(
            padded.layout,
            self._way,
            model.heads,
            model.dtype,
            model.device,
            reads=padded.reads,
            most_groups=self.bucket.groups + 1,  # one is padding
        )
        arrays: list[NDArray[np.generic]] = [padded.token_ids, padded.layout.positions()]
        return attention, [*arrays, padded.reads, padded.places, *attention.host_arrays()]

"""Predict how long a forward takes whose experts are divided over GPUs. Pure.

Devices, links, launches and sizes come from `sizing`, blocks of experts from `bench.moe`. Every
layer counts as a layer with experts, for all tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.expert_parallelism.placement import Shares
from bench.moe.shapes import Shape, assumed_times
from sglang_prefill_ext.fleet.planning.cost import Speed
from sglang_prefill_ext.sizing.forward import MAX_FORWARD_TOKENS, Serving, routed_operations
from sglang_prefill_ext.sizing.sublayers import Experts

Floats = NDArray[np.float64]

_FITTED_TOKENS = (1024, MAX_FORWARD_TOKENS)  # of each GPU


class Sends(StrEnum):
    """How often a token is sent to the experts of a layer, and back.

    * ``every copy``: once for each of its experts that is elsewhere (GShard, Lepikhin et al. 2020;
      DeepSpeed-MoE, Rajbhandari et al. 2022).
    * ``once a GPU``: once to each GPU that has one of them, as DeepEP does.
    * ``hidden``: as if other work hid all of it; no engine reaches that.
    """

    EVERY_COPY = "every copy"
    ONCE = "once a GPU"
    HIDDEN = "hidden"


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The work of one forward; float64 ``[gpus]``.

    Attributes:
        tokens: tokens whose attention each GPU computes.
        pairs: pairs of a query token and a key that it attends to, in one layer.
    """

    tokens: Floats
    pairs: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Engine:
    """GPUs that compute forwards together; one GPU has all experts and sends nothing.

    Attention is data parallel: each GPU has the tokens of its own rows. Experts compute the tokens
    of all GPUs. No GPU begins the next step of a layer before all have ended the current step.

    Attributes:
        blocks: experts and blocks of the same model.
        routing: share of a layer's rows that each expert gets; ``[forwards, layers, experts]``.
            A few layers represent all.
        placement: see `placement.Shares`; ``[forwards, layers, gpus, experts]``.
    """

    serving: Serving
    blocks: Shape
    sends: Sends
    routing: Floats
    placement: Shares

    @property
    def gpus(self) -> int:
        return len(self.placement[0, 0])

    @property
    def busiest(self) -> float:
        """Rows of the busiest GPU's experts over the mean of all GPUs, on average."""
        rows = (self.placement * self.routing[..., None, :]).sum(axis=-1)
        return float(rows.max(axis=-1).mean() * self.gpus)

    @property
    def weights_gb(self) -> float:
        """Weights on the GPU with the most experts, in 10^9 bytes.

        Weights other than experts are on every GPU.
        """
        model = self.serving.model
        slots = int((self.placement > 0).sum(axis=-1).max())
        routed = (model.weights - model.read_weights(0)) / self._experts.count * slots
        others = model.stored_weights - model.weights + model.read_weights(0)
        return self.serving.weight_bytes * (others + routed) / 1e9

    def speed(self) -> Speed:
        """The linear model of a forward's time that a router and the simulation use."""
        few, many = (
            self.forward_s(Batch(np.full(self.gpus, float(each)), np.zeros(self.gpus)))
            for each in _FITTED_TOKENS
        )
        token_s = (many - few) / (_FITTED_TOKENS[1] - _FITTED_TOKENS[0])
        model, device = self.serving.model, self.serving.device
        return Speed(
            launch_s=max(0.0, few - token_s * _FITTED_TOKENS[0]),
            token_s=token_s / self.gpus,
            pair_s=model.pair_operations / device.operations_per_s / self.gpus,
            max_forward_tokens=self.gpus * MAX_FORWARD_TOKENS,
        )

    def request_s(self, batch: Batch) -> float:
        """Seconds of a batch, divided into equal forwards if it is too large for one."""
        forwards = -(-int(batch.tokens.max()) // MAX_FORWARD_TOKENS)
        return forwards * self.forward_s(Batch(batch.tokens / forwards, batch.pairs / forwards))

    def forward_s(self, batch: Batch) -> float:
        """Seconds of one forward, as the mean over the routing of all forwards.

        Launches on the host overlap with the devices' work.
        """
        rows = self.rows(batch)
        sent = self.exchange_s(batch)
        experts_s = self.experts_s(rows, batch).max(axis=-1)
        layers_s = self.serving.model.layers * float((experts_s + 2 * sent).mean())
        tokens = int(batch.tokens.max())
        return max(self.serving.launch_s(tokens, self.gpus), self.others_s(batch) + layers_s)

    def rows(self, batch: Batch) -> Floats:
        """Expected rows of each expert on each GPU; ``[forwards, layers, gpus, experts]``."""
        total = batch.tokens.sum() * self._experts.active_count
        rows: Floats = self.placement * self.routing[..., None, :] * total
        return rows

    def experts_s(self, rows: NDArray[Any], batch: Batch) -> Floats:
        """Seconds that each GPU's experts take in a layer, ``[..., gpus]``: computing their rows in
        the best block, or reading their weights, whichever takes longer."""
        table, device = self.blocks.table, self.serving.device
        times = assumed_times(table)
        entries = table.candidates(int(batch.tokens.sum()))
        computed = np.min([times[entry].seconds(rows, entry.block) for entry in entries], axis=0)
        row_operations = self._experts.routed_operations / self._experts.active_count
        numbers = row_operations / 2 * (-np.expm1(-rows)).sum(axis=-1)  # experts with a row
        read_s = self.serving.weight_bytes * numbers / device.bytes_per_s
        longer: Floats = np.maximum(computed * row_operations / device.operations_per_s, read_s)
        return longer

    def others_s(self, batch: Batch) -> float:
        """Seconds of attention, routers and shared MLPs of all layers on the busiest GPU."""
        model, device = self.serving.model, self.serving.device
        token_operations = model.body_operations - routed_operations(model.counts)
        operations = batch.tokens * token_operations
        operations += batch.pairs * model.pair_operations
        read_s = self.serving.weight_bytes * model.read_weights(0) / device.bytes_per_s
        return max(float(operations.max()) / device.operations_per_s, read_s)

    def exchange_s(self, batch: Batch) -> Floats:
        """Seconds until all tokens of a layer have travelled one way; ``[forwards, layers]``.

        This is ``latency + bytes / bandwidth`` of the GPU that sends or receives the most. If all
        GPUs have equally many rows, ``Sends.EVERY_COPY`` makes ``tokens * top_k * hidden *
        number_bytes * (gpus - 1) / gpus`` bytes, where ``tokens`` are those of one GPU.
        """
        device, active = self.serving.device, self._experts.active_count
        share = (self.placement * self.routing[..., None, :]).sum(axis=-1)
        if self.gpus == 1 or self.sends is Sends.HIDDEN:
            return np.zeros(share.shape[:-1])
        once = self.sends is Sends.ONCE
        copies = 1 - (1 - share) ** active if once else share * active
        sent = batch.tokens * (copies.sum(axis=-1, keepdims=True) - copies)
        got = (batch.tokens.sum() - batch.tokens) * copies
        most = np.maximum(sent, got).max(axis=-1)
        num_bytes = most * self.serving.model.hidden * self.serving.number_bytes
        seconds: Floats = device.link_us / 1e6 + num_bytes / (device.link_gb_s * 1e9)
        return seconds

    @property
    def _experts(self) -> Experts:
        experts = self.serving.model.experts
        assert experts is not None, "only mixtures of experts are compared"
        return experts

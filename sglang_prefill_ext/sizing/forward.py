"""Predicts how long a packed forward takes. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.sizing.device import Device
from sglang_prefill_ext.sizing.mixers import Attention
from sglang_prefill_ext.sizing.model import ModelShape
from sglang_prefill_ext.sizing.shape import Shape
from sglang_prefill_ext.sizing.sublayers import Experts, Sublayer
from sglang_prefill_ext.sizing.work import BFLOAT16_BYTES, packed_bytes, packed_operations

LABELS = 2
"""Number of tokens whose probabilities are asked for, as for a yes/no question."""

MAX_FORWARD_TOKENS = PrefillOnlyConfig().max_forward_tokens
"""Most tokens of one forward; the engines' default."""

LAYER_US, EAGER_US, REPLAY_US = 280.0, 500.0, 600.0
"""Host time in microseconds, estimated in `bench.host_cost`. The first two are for a forward of any
size that is launched kernel by kernel: each layer, and all the rest. The third is for a whole
forward that is replayed as a graph."""

REPLAYED_LAYER_US = 45.0
"""Least time of a layer of a replayed forward on the device: ten kernels, of which each takes 4 µs
and more. Measured on an H100 with 192 tokens (`bench.gpu`)."""

FEW_TOKENS_BLOCK, BLOCK = 16, 64
"""Rows of one matrix product of an expert, as SGLang's Triton kernel has them if there is no table
for the device: the first if there are at most as many tokens as experts, else the second."""


@dataclass(frozen=True, slots=True)
class ForwardTime:
    """The parts of the time of one forward, or of several one after the other; seconds.

    Attributes:
        launch_s: time of the host.
        arithmetic_s, traffic_s: time of a device, at the shares of its peaks that it reaches.
        all_reduce_s: time of the link.
        overlaps: launches are made while the device computes.
    """

    launch_s: float
    arithmetic_s: float
    traffic_s: float
    all_reduce_s: float
    overlaps: bool

    @property
    def seconds(self) -> float:
        """The whole time: arithmetic and traffic overlap, all-reduces wait for both."""
        return sum(self.spent.values())

    @property
    def spent(self) -> dict[str, float]:
        """The terms of `seconds`, by name, without those that overlap with a longer one."""
        computing = {"arithmetic": self.arithmetic_s, "memory": self.traffic_s}
        longer = max(computing, key=computing.__getitem__)
        device = {longer: computing[longer], "all-reduces": self.all_reduce_s}
        launches = {"launches": self.launch_s}
        if not self.overlaps:
            return launches | device
        return launches if self.launch_s > sum(device.values()) else device


@dataclass(frozen=True, slots=True)
class Serving:
    """A model on devices of one kind.

    Attributes:
        weight_bytes: of a weight; 1 for fp8, about 0.5 for four bits.
        number_bytes: of an activation and an element of K/V.
        imbalance: rows of the busiest device's experts, divided by the mean. 1 if every expert is
            cut over all devices, as by SGLang's default; more if whole experts are divided
            (``--ep-size``).
    """

    model: ModelShape
    device: Device
    weight_bytes: float = BFLOAT16_BYTES
    number_bytes: int = BFLOAT16_BYTES
    imbalance: float = 1.0

    def forward(self, shape: Shape, ranks: int, requests: int = 1) -> ForwardTime:
        """Predict the time of `requests` of a shape that share a forward.

        If they have more tokens than one forward may have, they take several equal forwards. Every
        rank is assumed to have an equal share of all weights, which is too little if there are more
        ranks than K/V heads.
        """
        tokens = requests * shape.packed_tokens
        forwards = forwards_of(tokens)
        traffic = packed_bytes(
            *(self.model, shape, LABELS),
            weight_bytes=self.weight_bytes,
            number_bytes=self.number_bytes,
            requests=requests,
        )
        traffic += (forwards - 1) * self.weight_bytes * self.model.read_weights(tokens // forwards)
        rows = requests * shape.items
        own_tokens, own_rows = -(-tokens // forwards), -(-rows // forwards)
        return ForwardTime(
            launch_s=forwards * self.launch_s(own_tokens, ranks),
            arithmetic_s=self._operations(shape, ranks, requests)
            / (ranks * self.device.operations_per_s),
            traffic_s=traffic / (ranks * self.device.bytes_per_s),
            all_reduce_s=forwards * self.all_reduces_s(own_tokens, own_rows, ranks),
            overlaps=self.device.launch_ms is None,
        )

    def launch_s(self, tokens: int, ranks: int) -> float:
        """Seconds of launching one forward of so many tokens: by the host, or by a graph."""
        if self.device.launch_ms is not None:
            return self.device.launch_ms / 1e3
        layers = self.model.layers
        if self.model.is_replayable and tokens <= graph_tokens(ranks):
            return max(REPLAY_US, REPLAYED_LAYER_US * layers) / 1e6
        return (LAYER_US * layers + EAGER_US) / 1e6

    def all_reduces_s(self, tokens: int, rows: int, ranks: int) -> float:
        """Seconds of a forward's all-reduces: after the embedding, each attention and each MLP.

        Each adds up ``tokens * hidden`` numbers; from the last attention on ``rows * hidden``,
        because all else is computed at the read positions only.
        """
        token_bytes = self.model.hidden * self.number_bytes
        of_tokens_s = self.device.all_reduce_s(tokens * token_bytes, ranks)
        of_rows_s = self.device.all_reduce_s(rows * token_bytes, ranks)
        before, behind = (
            sum(count for each, count in steps.items() if each.reduces)
            for steps in (self.model.before, self.model.behind)
        )
        at_rows = isinstance(self.model.last_mixer, Attention)
        return (1 + before + (not at_rows)) * of_tokens_s + (at_rows + behind) * of_rows_s

    def _operations(self, shape: Shape, ranks: int, requests: int) -> float:
        """Operations of all ranks, if each did as many as the busiest one."""
        counted = requests * packed_operations(self.model, shape, LABELS)
        tokens, rows = requests * shape.packed_tokens, requests * shape.items
        before, behind = map(routed_operations, (self.model.before, self.model.behind))
        routed = before * tokens + behind * rows
        experts = self.model.experts
        if experts is None:
            return counted
        own_tokens = -(-tokens // forwards_of(tokens))
        imbalance = self.imbalance if ranks > 1 else 1.0
        return counted + (padded_ratio(own_tokens, experts) * imbalance - 1) * routed


def routed_operations(steps: Mapping[Sublayer, int]) -> int:
    """Operations of routed experts for one token in these steps."""
    return sum(
        count * each.routed_operations for each, count in steps.items() if isinstance(each, Experts)
    )


def forwards_of(tokens: int) -> int:
    """Forwards that so many tokens take."""
    return -(-tokens // MAX_FORWARD_TOKENS)


def graph_tokens(ranks: int) -> int:
    """Tokens of the largest graph on CUDA; 0 if there is none."""
    return PrefillOnlyConfig().graph_tokens(on_cuda=True, ranks=ranks)


def padded_ratio(tokens: int, experts: Experts) -> float:
    """Rows of whole blocks divided by the rows that are routed, as expected with even routing.

    Args:
        tokens: of the forward; > 0.
    """
    block = FEW_TOKENS_BLOCK if tokens <= experts.count else BLOCK
    rows = tokens * experts.active_count / experts.count
    return expected_padded_rows(rows, block) / rows


def expected_padded_rows(rows: float, block: int) -> float:
    """Expected rows that an expert computes if `rows` > 0 are routed to it on average.

    The routed rows are assumed to be Poisson distributed, which many experts come close to. For all
    blocks but the first, the normal distribution is used instead.
    """
    blocks, edge = -math.expm1(-rows), block
    while edge < rows + 6 * math.sqrt(rows):
        blocks += (1 + math.erf((rows - edge - 0.5) / math.sqrt(2 * rows))) / 2
        edge += block
    return block * blocks

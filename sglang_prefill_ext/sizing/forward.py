"""What a packed forward must do at least, and how long it is expected to take. Pure.

Counted are multiplications and additions (two operations per multiply-add) of linear layers,
attention and read-out of a decoder, and the bytes of weights, keys and values. Norms, rotary
embedding, softmax and activations are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.sizing.device import Device
from sglang_prefill_ext.sizing.model import Experts, ModelShape
from sglang_prefill_ext.sizing.shape import Shape


def packed_operations(model: ModelShape, shape: Shape, labels: int) -> int:
    """The least of a packed forward: the prefix once, every row's rest, the labels' columns.

    The last layer needs keys and values of all tokens, and all else at the rows' last tokens only.
    A softmax over the labels needs only their logits: what normalises over the vocabulary
    cancels out.
    """
    tokens = shape.packed_tokens
    others = tokens * (model.body_operations - model.layer_operations)
    others += (model.layers - 1) * shape.packed_pairs * model.pair_operations
    last = (
        tokens * model.kv_operations
        + shape.items * (model.layer_operations - model.kv_operations)
        + shape.items * shape.row_tokens * model.pair_operations
    )
    return others + last + shape.items * model.readout_operations(labels)


def packed_bytes(
    model: ModelShape, shape: Shape, labels: int, number_bytes: int, requests: int = 1
) -> int:
    """The least traffic of a packed forward: weights once, K/V written and read once.

    Args:
        requests: of that shape that share the forward.
    """
    tokens = requests * shape.packed_tokens
    numbers = model.read_weights(tokens) + kv_numbers(model, tokens)
    return number_bytes * (numbers + labels * model.hidden)


def kv_numbers(model: ModelShape, tokens: int) -> int:
    """Keys and values of so many tokens, written and read once."""
    return 2 * model.layers * 2 * model.kv_heads * model.head_dim * tokens


LABELS = 2
"""Tokens whose probabilities are asked for, as for a yes/no question."""

MAX_FORWARD_TOKENS = PrefillOnlyConfig().max_forward_tokens
"""Of one forward, as engines have it by default."""

LAYER_US, EAGER_US, REPLAY_US = 280.0, 500.0, 600.0
"""Host time of a layer, and of the rest, of a forward that is launched kernel by kernel, whatever
its size, and of one that is replayed as a graph; microseconds, estimated in `bench.host_cost`."""

FEW_TOKENS_BLOCK, BLOCK = 16, 64
"""Rows of one matrix product of an expert, up to as many tokens as experts and beyond, as SGLang's
Triton kernel has them where no table of a device says otherwise."""


@dataclass(frozen=True, slots=True)
class ForwardTime:
    """What the time of one forward, or of several one after the other, consists of; seconds.

    Attributes:
        launch_s: of the host.
        arithmetic_s, traffic_s: of a device, at what it reaches of its peaks.
        all_reduce_s: of the link.
        overlaps: launches are made while the device computes.
    """

    launch_s: float
    arithmetic_s: float
    traffic_s: float
    all_reduce_s: float
    overlaps: bool

    @property
    def seconds(self) -> float:
        """Arithmetic and traffic overlap, all-reduces wait for both."""
        return sum(self.spent.values())

    @property
    def spent(self) -> dict[str, float]:
        """What the seconds consist of, by name; what another term hides is left out."""
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
        number_bytes: of a weight, an activation and an element of K/V; 2 for bfloat16.
        imbalance: rows of the busiest device's experts over the mean. 1: every expert is cut, as
            with SGLang's default; more where whole experts are divided (``--ep-size``).
    """

    model: ModelShape
    device: Device
    number_bytes: int = 2
    imbalance: float = 1.0

    def forward(self, shape: Shape, ranks: int, requests: int = 1) -> ForwardTime:
        """Predict `requests` of a shape that share a forward; more tokens than one forward may have
        are several equal ones.

        Every rank is taken to have an equal share of all weights. That is short where there are
        more ranks than K/V heads.
        """
        tokens = requests * shape.packed_tokens
        forwards = forwards_of(tokens)
        traffic = packed_bytes(self.model, shape, LABELS, self.number_bytes, requests)
        traffic += (forwards - 1) * self.number_bytes * self.model.read_weights(tokens // forwards)
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
        """Seconds of the host for one forward of so many tokens."""
        if self.device.launch_ms is not None:
            return self.device.launch_ms / 1e3
        replays = tokens <= graph_tokens(ranks)
        return (REPLAY_US if replays else LAYER_US * self.model.layers + EAGER_US) / 1e6

    def all_reduces_s(self, tokens: int, rows: int, ranks: int) -> float:
        """Seconds of all of a forward's: after the embedding, and each layer's attention and MLP.

        Each adds up ``tokens * hidden`` numbers; those of the last layer, which computes them at
        the read positions only, ``rows * hidden``.
        """
        token_bytes = self.model.hidden * self.number_bytes
        of_tokens_s = self.device.all_reduce_s(tokens * token_bytes, ranks)
        of_rows_s = self.device.all_reduce_s(rows * token_bytes, ranks)
        return (2 * self.model.layers - 1) * of_tokens_s + 2 * of_rows_s

    def _operations(self, shape: Shape, ranks: int, requests: int) -> float:
        """Of all ranks, if each took as long as the busiest one."""
        counted = requests * packed_operations(self.model, shape, LABELS)
        experts = self.model.experts
        if experts is None:
            return counted
        tokens, rows = requests * shape.packed_tokens, requests * shape.items
        sparse = self.model.layers - experts.dense_layers
        excess = padded_ratio(tokens, experts) * (self.imbalance if ranks > 1 else 1.0) - 1
        return counted + excess * self.model.routed_operations * ((sparse - 1) * tokens + rows)


def forwards_of(tokens: int) -> int:
    """Forwards that so many tokens take."""
    return -(-tokens // MAX_FORWARD_TOKENS)


def graph_tokens(ranks: int) -> int:
    """Of the largest graph on CUDA; 0: there is none."""
    return PrefillOnlyConfig().graph_tokens(on_cuda=True, ranks=ranks)


def padded_ratio(tokens: int, experts: Experts) -> float:
    """Rows in full blocks over the rows that are routed, expected where routing is even.

    Args:
        tokens: of the forward; > 0.
    """
    block = FEW_TOKENS_BLOCK if tokens <= experts.count else BLOCK
    rows = tokens * experts.active / experts.count
    return expected_padded_rows(rows, block) / rows


def expected_padded_rows(rows: float, block: int) -> float:
    """Rows that an expert computes if `rows` > 0 are routed to it on average.

    They are taken to be Poisson distributed, which many experts come close to, and those of all
    blocks but the first to be normally distributed.
    """
    blocks, edge = -math.expm1(-rows), block
    while edge < rows + 6 * math.sqrt(rows):
        blocks += (1 + math.erf((rows - edge - 0.5) / math.sqrt(2 * rows))) / 2
        edge += block
    return block * blocks

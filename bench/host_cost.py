"""What the host has to do for a forward: launches and time, as estimated for an H100's host (pure).

The numbers are counts of the code of Qwen3 and times of its Python on an EPYC core, with what
launches cost on CUDA added: nothing here was measured on a GPU. A first sitting on one compares
with them.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglang_prefill_ext.sizing.forward import EAGER_US, LAYER_US, REPLAY_US

LAYER_KERNELS = 10
"""Of a packed layer: norm with addition, QKV, norms of heads, rotation, attention, output, norm
with addition, gate and up, activation, down."""

EAGER_KERNELS = 7
"""Of an eager forward besides: embedding, two gathers of the read positions, final norm, labels,
and two fills of a batch's fields."""

EAGER_COPIES = 4
"""Of an eager forward: tokens and plan, lengths of rows, and labels to the device; values back."""

REPLAY_LAUNCHES = 6
"""Of a replayed forward: inputs, the graph, the gather of the read positions, labels to the device,
their kernel, and values back."""

CACHED_LAUNCHES = 1
"""More where a prefix is cached: its slots, written into the page table."""

STOCK_LAYER_LAUNCHES = 5
"""Of a layer of stock's prefill graph, which breaks at attention: a part of the graph, and outside
of it K/V stored, attention, its copy, and zeros behind it."""

STOCK_LAYER_US = 101.0
"""Host time of a layer of stock's; microseconds."""


@dataclass(frozen=True, slots=True)
class HostCost:
    """Of one forward.

    Attributes:
        launches: of kernels, copies and graphs, each a call into the driver.
        ms: of the host.
    """

    launches: int
    ms: float


def eager(layers: int, *, cached: bool = False) -> HostCost:
    """A packed forward that is launched kernel by kernel."""
    launches = LAYER_KERNELS * layers + EAGER_KERNELS + EAGER_COPIES + CACHED_LAUNCHES * cached
    return HostCost(launches, (LAYER_US * layers + EAGER_US) / 1e3)


def replayed(*, cached: bool = False) -> HostCost:
    """A packed forward that is one graph."""
    return HostCost(REPLAY_LAUNCHES + CACHED_LAUNCHES * cached, REPLAY_US / 1e3)


def stock(layers: int) -> HostCost:
    """A prefill of SGLang, layers alone, in the graphs that it has by default on CUDA."""
    return HostCost(STOCK_LAYER_LAUNCHES * layers + 1, STOCK_LAYER_US * layers / 1e3)

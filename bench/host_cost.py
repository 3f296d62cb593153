"""Estimate the host work of a forward on an H100 machine: launches and time (pure).

The launches are counted in the code of Qwen3. The times are those of its Python on an EPYC core,
with the cost of launches on CUDA added. On a first H100 machine, with busy Xeon cores, the shape of
Qwen3-0.6B took longer: an eager forward 20 ms instead of 8.3, a replayed one 1.8 ms instead of 0.6.
Of the latter the GPU needs 1.3 ms, because each of 289 kernels takes it 4 µs and more.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglang_prefill_ext.sizing.forward import EAGER_US, LAYER_US, REPLAY_US

LAYER_KERNELS = 10
"""Kernels of a packed layer: norm with addition, QKV, norms of heads, rotation, attention, output,
norm with addition, gate and up, activation, down."""

EAGER_KERNELS = 7
"""Kernels of an eager forward besides its layers: embedding, two gathers of the read positions,
final norm, labels, and two fills of a batch's fields."""

EAGER_COPIES = 4
"""Copies of an eager forward: tokens with the plan, lengths of rows, and labels to the device;
values back to the host."""

REPLAY_LAUNCHES = 6
"""Launches of a replayed forward: copy of the inputs, the graph, the gather of the read positions,
copy of the labels, their kernel, and copy of the values back."""

CACHED_LAUNCHES = 1
"""Further launches if a prefix is cached: its slots are written into the page table."""

STOCK_LAYER_LAUNCHES = 5
"""Launches of a layer in stock's prefill graph, which is interrupted at attention: a part of the
graph, and outside of it storing K/V, attention, a copy of its result, and zeros behind it."""

STOCK_LAYER_US = 101.0
"""Host time of one layer of stock, in microseconds."""


@dataclass(frozen=True, slots=True)
class HostCost:
    """Host work for one forward.

    Attributes:
        launches: launched kernels, copies and graphs; each is a call into the driver.
        ms: host time in milliseconds.
    """

    launches: int
    ms: float


def eager(layers: int) -> HostCost:
    """Cost of a packed forward that is launched kernel by kernel."""
    launches = LAYER_KERNELS * layers + EAGER_KERNELS + EAGER_COPIES
    return HostCost(launches, (LAYER_US * layers + EAGER_US) / 1e3)


def replayed(*, cached: bool = False) -> HostCost:
    """Cost of a packed forward that replays one CUDA graph."""
    return HostCost(REPLAY_LAUNCHES + CACHED_LAUNCHES * cached, REPLAY_US / 1e3)


def stock(layers: int) -> HostCost:
    """Cost of the layers of a stock prefill, in the graphs that SGLang uses by default on CUDA."""
    return HostCost(STOCK_LAYER_LAUNCHES * layers + 1, STOCK_LAYER_US * layers / 1e3)

"""Devices that a model may be divided over, and the links between them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.sizing.model import ModelShape

ARITHMETIC_REACHED = 0.55
TRAFFIC_REACHED = 0.9
"""Shares of a GPU's peaks that a model's forward reaches; estimates, see docs/gpu.md."""

UNBOUNDED = 1e9
_MOST_TOKENS_PER_S = 1e12
_MOST = 1e30
"""Rates above these, or below their inverses, make times that are no numbers."""
_LONGEST_WAIT = 1e9
"""Of an exchange in µs, and of a launch in ms; longer ones make times that nobody can read."""


@dataclass(frozen=True, slots=True)
class Device:
    """One of several equal devices.

    Attributes:
        tflops: peak of dense bfloat16 arithmetic, in 10^12 operations a second.
        gb_s: peak of its memory, in 10^9 bytes a second.
        memory_gb: of the device, in 10^9 bytes.
        link_gb_s: what an all-reduce reaches on the link, in 10^9 bytes a second each way.
        link_us: microseconds of one exchange over the link, however small.
        launch_ms: milliseconds that every forward takes besides its arithmetic, during which
            nothing is computed. None: launches overlap with arithmetic and take the time that
            `Serving.launch_s` predicts.
        arithmetic_reached, traffic_reached: share of each peak that a forward reaches.
    """

    tflops: float
    gb_s: float
    memory_gb: float
    link_gb_s: float
    link_us: float
    launch_ms: float | None = None
    arithmetic_reached: float = ARITHMETIC_REACHED
    traffic_reached: float = TRAFFIC_REACHED

    def __post_init__(self) -> None:
        for name in ("tflops", "gb_s", "memory_gb", "link_gb_s"):
            _require_positive(name, getattr(self, name))
        _require_within("link_us", self.link_us, 0.0, _LONGEST_WAIT)
        _require_within("launch_ms", self.launch_ms or 0.0, 0.0, _LONGEST_WAIT)

    @property
    def operations_per_s(self) -> float:
        """Operations a second that a forward reaches."""
        return self.arithmetic_reached * self.tflops * 1e12

    @property
    def bytes_per_s(self) -> float:
        """Bytes a second that a forward reaches."""
        return self.traffic_reached * self.gb_s * 1e9

    def all_reduce_s(self, num_bytes: int, ranks: int) -> float:
        """Seconds of one all-reduce of `num_bytes` on each of `ranks` devices; 0 of one rank.

        The shorter of two ways, as SGLang chooses between them by size. With latency ``a`` and
        bandwidth ``b``:

        * one-shot, every rank reads what all others have: ``a + (ranks - 1) * bytes / b``,
        * ring: ``2 * (ranks - 1) * a + 2 * (ranks - 1) / ranks * bytes / b`` (Thakur, Rabenseifner
          and Gropp, "Optimization of collective communication operations in MPICH", 2005).
        """
        others, latency_s = ranks - 1, self.link_us / 1e6
        one_copy_s = num_bytes / (self.link_gb_s * 1e9)
        one_shot_s = latency_s + others * one_copy_s
        return min(one_shot_s, 2 * others * (latency_s + one_copy_s / ranks))

    @classmethod
    def measured(
        cls,
        model: ModelShape,
        tokens_per_s: float,
        launch_ms: float,
        link_gb_s: float = UNBOUNDED,
        link_us: float = 0.0,
    ) -> Device:
        """A core or another device, from the speed that an engine has measured with a model.

        Args:
            tokens_per_s: of one device with the whole model, not counting launches.
            link_gb_s, link_us: a single device has none.
        """
        _require_positive("tokens_per_s", tokens_per_s, most=_MOST_TOKENS_PER_S)
        tflops = tokens_per_s * model.body_operations / 1e12
        return cls(tflops, UNBOUNDED, UNBOUNDED, link_gb_s, link_us, launch_ms, 1.0, 1.0)


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def _require_positive(name: str, value: float, most: float = _MOST) -> None:
    if not value > 0:
        raise ConfigError(f"{flag_of(name)} {value:g}: give a number above 0.")
    _require_within(name, value, 1 / most, most)


def _require_within(name: str, value: float, least: float, most: float) -> None:
    if not math.isfinite(value):
        raise ConfigError(f"{flag_of(name)} {value:g}: give a finite number.")
    if not least <= value <= most:
        raise ConfigError(f"{flag_of(name)} {value:g}: give a number from {least:g} to {most:g}.")


DEVICES: Mapping[str, Device] = {
    "h100-sxm": Device(989, 3350, 80, link_gb_s=360, link_us=8),
    "h100-pcie": Device(756, 2000, 80, link_gb_s=40, link_us=25),
    "h200": Device(989, 4800, 141, link_gb_s=360, link_us=8),
    "l40s": Device(362, 864, 48, link_gb_s=20, link_us=25),
}
"""Peaks are those of NVIDIA's data sheets, without sparsity. Links are estimates: of the 450 GB/s
each way of NVLink 4, and of 64 and 32 of PCIe 5 and 4 with 16 lanes, an all-reduce reaches less."""

MEASURED = "cpu"
"""Name of the device that has no entry, because its speed is given by the user."""

"""What several schedulers on one device can reach, from what a request costs (pure).

Four things are busy, and the busiest one bounds the rate: each scheduler, the device, the front
end, and the cores that all processes share. Queues are taken to be full, so this is the rate of a
closed loop with many clients.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """What one request takes, in seconds.

    Attributes:
        python_s: of its scheduler's Python.
        device_s: of the device; on a CPU, of the scheduler's own core.
        front_s: of the front end's process.
        cpu_s: of all cores together, the load generator's part included.
    """

    python_s: float
    device_s: float
    front_s: float = 0.0
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the schedulers run.

    Attributes:
        cores: that all processes share.
        asynchronous: a scheduler prepares the next forward while the device computes.
        overlap: which share of the other schedulers' device time runs beside one's own: 0 where
            kernels of different processes take turns, as without CUDA MPS, and 1 where each has
            enough of the device for itself, as with cores of its own on a CPU. Small kernels
            under MPS lie between.
    """

    cores: int
    asynchronous: bool = True
    overlap: float = 0.0


def limits(costs: Costs, schedulers: int, machine: Machine) -> dict[str, float]:
    """Requests per second that each of the four allows; infinite where a request costs nothing."""
    python, device = costs.python_s, costs.device_s
    one = max(python, device) if machine.asynchronous else python + device
    device_each = device * (1 - machine.overlap * (schedulers - 1) / schedulers)
    return {
        "schedulers": _rate(one, schedulers),
        "device": _rate(device_each),
        "front end": _rate(costs.front_s),
        "cores": _rate(costs.cpu_s, machine.cores),
    }


def bound(costs: Costs, schedulers: int, machine: Machine) -> tuple[str, float]:
    """What bounds the rate, and the rate in requests per second."""
    each = limits(costs, schedulers, machine)
    name = min(each, key=each.__getitem__)
    return name, each[name]


def gain(costs: Costs, schedulers: int, machine: Machine) -> float:
    """The rate of so many schedulers over that of one; more than 1 where they pay."""
    return bound(costs, schedulers, machine)[1] / bound(costs, 1, machine)[1]


def _rate(seconds: float, servers: int = 1) -> float:
    return servers / seconds if seconds > 0 else float("inf")

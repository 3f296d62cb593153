"""Predict the rate of several schedulers on one device from the costs of a request (pure).

Four things are busy, and the busiest one bounds the rate: each scheduler, the device, the front
end, and the cores that all processes share. The model assumes full queues, so it predicts the rate
of a closed loop with many clients.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """Time that one request takes, in seconds.

    Attributes:
        python_s: Python time of its scheduler.
        device_s: time of the device; on a CPU, of the scheduler's own core.
        front_s: CPU time of the front end's process.
        cpu_s: CPU time of all processes together, that of the load generator included.
    """

    python_s: float
    device_s: float
    front_s: float = 0.0
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the schedulers run.

    Attributes:
        cores: number of cores that all processes share.
        asynchronous: whether a scheduler prepares the next forward while the device computes.
        overlap: share of the other schedulers' device time that overlaps with a scheduler's own.
            It is 0 if kernels of different processes take turns, as without CUDA MPS. It is 1 if
            each scheduler has enough of the device for itself, such as its own cores on a CPU.
            Small kernels under MPS are between.
    """

    cores: int
    asynchronous: bool = True
    overlap: float = 0.0


def limits(costs: Costs, schedulers: int, machine: Machine) -> dict[str, float]:
    """Requests per second that each of the four allows; infinite if a request costs it nothing."""
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
    """Return the name of what bounds the rate, and the rate in requests per second."""
    each = limits(costs, schedulers, machine)
    name = min(each, key=each.__getitem__)
    return name, each[name]


def gain(costs: Costs, schedulers: int, machine: Machine) -> float:
    """The rate of `schedulers` schedulers over that of one; above 1 if they pay off."""
    return bound(costs, schedulers, machine)[1] / bound(costs, 1, machine)[1]


def _rate(seconds: float, servers: int = 1) -> float:
    return servers / seconds if seconds > 0 else float("inf")

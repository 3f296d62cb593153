"""What a fleet on Ray consists of, and whether a cluster has room for it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sglang_prefill_ext.errors import ClusterError, ConfigError

ENGINES, ROUTERS = "prefill-engines", "prefill-routers"
"""Names of the applications, and of the one deployment of each."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """How many engines there are.

    Attributes:
        least, most: equal without autoscaling; both 0 for no fleet at all.
    """

    least: int
    most: int

    @property
    def scales(self) -> bool:
        return self.least != self.most

    @classmethod
    def of(cls, text: str) -> Replicas:
        """Read `4`, or `1-8` for as many as the work needs.

        Raises:
            ConfigError: it is neither.
        """
        found = re.fullmatch("([0-9]{1,6})(?:-([0-9]{1,6}))?", text.strip())
        if found is not None:
            least, most = int(found[1]), int(found[2] or found[1])
            if found[2] is None or 1 <= least <= most:
                return cls(least, most)
        raise ConfigError(
            f"--replicas {text!r} is no number of engines. "
            "Give a number such as 4, or a range such as 1-8."
        )


@dataclass(frozen=True, slots=True)
class Launch:
    """One engine, as every replica starts it.

    Attributes:
        flags: of SGLang, without those that say where it listens.
        drain_s: seconds that an engine which leaves has for its requests.
    """

    model_path: str
    flags: tuple[str, ...] = ()
    api_key: str = field(default="", repr=False)  # not for logs
    drain_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Needs:
    """What one engine takes of a node."""

    cpus: float
    gpus: int

    def __str__(self) -> str:
        return f"{self.cpus:g} cores" + (f" and {self.gpus} GPUs" if self.gpus else "")


def needs_of(ranks: int, device: str, cpus: float, nodes: Iterable[Mapping[str, float]]) -> Needs:
    """What an engine needs of a node: a GPU for every rank, or none if the cluster has none.

    Args:
        ranks: number of processes of one engine that compute.
        device: the device that was asked for; empty or `auto` for whatever there is.
        cpus: cores of one engine.
        nodes: resources of each node, by Ray's names.
    """
    on_cpu = device == "cpu" or (
        device in ("", "auto") and not any(node.get("GPU") for node in nodes)
    )
    return Needs(cpus, 0 if on_cpu else ranks)


def require_room(engines: int, needs: Needs, nodes: Iterable[Mapping[str, float]]) -> None:
    """Raises: ClusterError: so many engines do not fit, each on one node."""
    room = _room(needs, nodes)
    if room < engines:
        raise ClusterError(
            f"--replicas: the cluster has room for {room} engines of {needs} each, not for "
            f"{engines}. Add nodes, or give fewer --replicas, --cpus-per-replica or --tp-size."
        )


def surge_percent(replicas: Replicas, needs: Needs, nodes: Iterable[Mapping[str, float]]) -> int:
    """By how many percent Serve may exceed the number of engines while it replaces some.

    By one engine if the cluster has room for it, else by none. Serve takes the percentage of as
    many engines as there are to be, and rounds up.
    """
    if not replicas.least:
        return 0
    room = _room(needs, nodes)
    return max(1, 100 // replicas.most) if room > replicas.most else 0


def _room(needs: Needs, nodes: Iterable[Mapping[str, float]]) -> int:
    """How many engines fit, each on one node."""
    return sum(_room_of(node, needs) for node in nodes)


def _room_of(node: Mapping[str, float], needs: Needs) -> int:
    by_cpus = int(node.get("CPU", 0) / needs.cpus) if needs.cpus else 1 << 20
    return min(by_cpus, int(node.get("GPU", 0) // needs.gpus)) if needs.gpus else by_cpus

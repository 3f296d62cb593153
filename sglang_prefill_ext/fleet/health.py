"""Which work a replica may get, from its failures. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

_RETRY_S = 1.0
"""How long a replica gets no work after a first failure; twice as long after each further one."""

_MOST_DOUBLINGS = 6  # of that

_FAILURES_TO_DOWN = 3  # one after the other

UNKNOWN = "unknown"
"""Shown in place of a `Health` for a replica that has never answered."""


class Health(StrEnum):
    """Which work a replica may get.

    UP: any. SUSPECT: only if no replica is up. DOWN: none. DRAINING: none, as it is to leave.
    """

    UP = "up"
    SUSPECT = "suspect"
    DOWN = "down"
    DRAINING = "draining"


@dataclass(slots=True)
class Failures:
    """Failures of a replica, one after the other.

    Attributes:
        retry_s: until then it gets no work.
    """

    parts: int = 0
    probes: int = 0
    retry_s: float = -math.inf

    @property
    def are_final(self) -> bool:
        return self.parts + self.probes >= _FAILURES_TO_DOWN

    def add(self, now_s: float, *, parts: int = 0, probes: int = 0) -> None:
        doublings = min(self.parts + self.probes, _MOST_DOUBLINGS)
        self.retry_s = now_s + _RETRY_S * 2**doublings
        self.parts += parts
        self.probes += probes

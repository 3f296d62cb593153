"""What the status page and the metrics say of graphs. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

REPLAYED = "graph"
NO_GRAPHS = "no_graphs"
"""How a forward runs where there are none although they were asked for."""


@dataclass(slots=True)
class GraphUse:
    """The graphs of one scheduler.

    Attributes:
        sizes: tokens of each graph.
        obstacle: why there is none, or no longer, although they were asked for; empty if there is.
        bytes: memory of the device that all of them keep; 0 without CUDA, where it is not known.
        seconds: for which the start was longer.
        forwards: `REPLAYED` ones, and eager ones by reason. Empty unless graphs were asked for.
    """

    sizes: tuple[int, ...] = ()
    obstacle: str = ""
    bytes: int = 0
    seconds: float = 0.0
    forwards: Counter[str] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, Any]:
        """Return all of it, ready for JSON."""
        return asdict(self) | {"forwards": dict(self.forwards)}

"""What measurements of any kind on one model have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from bench.score.score_gate import ScoreGate


class Planned(Protocol):
    """A plan with the dtype of the model in all servers, which decides the gate's tolerance."""

    @property
    def dtype(self) -> str: ...


PlanT = TypeVar("PlanT", bound=Planned)
ResultT = TypeVar("ResultT")


@dataclass(slots=True)
class Run(Generic[PlanT, ResultT]):
    """All measurements on one model.

    Attributes:
        model: directory of the model, named as in results.
        plan: what to run.
        tell: called with a few words about what happens now; never with a figure.
        results: all results so far.
        gate: compares all answers.
    """

    model: Path
    plan: PlanT
    tell: Callable[[str], None]
    results: list[ResultT] = field(init=False, default_factory=list)
    gate: ScoreGate = field(init=False)

    def __post_init__(self) -> None:
        self.gate = ScoreGate(self.plan.dtype)

    @property
    def preset(self) -> str:
        return self.model.name

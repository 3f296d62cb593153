"""Measure servers that run side by side in short turns of closed loops; compare turn by turn."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.drawing import picture
from bench.fleet.engines import parts_and_requests
from bench.load import Window, closed_loop, run_loop
from bench.score.plan import Case, alternating, make_cases
from bench.score.score_gate import ScoreGate
from bench.workloads import Shape

_MIN_REQUESTS = 3
_PANELS = (("faster", "P50, reference over this"), ("more", "requests/s, this over reference"))
_ROW_INCHES = 0.35


def cases_of(model: Path, shapes: Sequence[str]) -> list[Case]:
    """Prepare the requests of every shape, given as ``<query>+<item>x<items>``."""
    return make_cases(model, map(Shape.parse, shapes))


@dataclass(frozen=True, slots=True)
class TurnResult:
    """One closed loop.

    Attributes:
        subject: name of the engine or router that served it.
        requests, requests_per_s, least_ms, p50_ms, p99_ms: of the counted answers; `least_ms` is
            the figure that other load on the machine disturbs least.
        parts_per_request: parts that a router sent per request; 0 without a router.
    """

    preset: str
    shape: str
    clients: int
    subject: str
    turn: int
    requests: int
    requests_per_s: float
    least_ms: float
    p50_ms: float
    p99_ms: float
    parts_per_request: float


@dataclass(slots=True)
class Turns:
    """Subjects measured in turn, see `alternating`.

    Attributes:
        subjects: name -> port; answers of all others are compared with those of the first.
        seconds: least length of a loop.
        turns: how often each subject is measured; every other turn runs in reverse order.
    """

    preset: str
    subjects: Mapping[str, int]
    seconds: float
    turns: int
    tell: Callable[[str], None]
    gate: ScoreGate = field(default_factory=lambda: ScoreGate("float32"))
    results: list[TurnResult] = field(default_factory=list)

    def run(self, cases: Sequence[Case], clients: Sequence[int]) -> None:
        """Measure every case with each number of clients.

        Raises:
            GateError: answers differ.
        """
        for case in cases:
            for count in clients:
                for turn, subject in alternating(list(self.subjects), self.turns):
                    self.tell(f"{case.shape}, {count} clients, turn {turn + 1}: {subject}")
                    self._measure(subject, case, count, turn)

    def _measure(self, subject: str, case: Case, clients: int, turn: int) -> None:
        port, shape = self.subjects[subject], str(case.shape)
        parts, requests = parts_and_requests(port)
        window = Window(self.seconds, max(_MIN_REQUESTS, clients))
        seen = run_loop(closed_loop(port, case.pool, clients, window))
        parts_now, requests_now = parts_and_requests(port)
        if subject == next(iter(self.subjects)):
            self.gate.keep(shape, seen.answers)
        else:
            self.gate.check(subject, shape, seen.answers)
        self.results.append(
            TurnResult(
                preset=self.preset,
                shape=shape,
                clients=clients,
                subject=subject,
                turn=turn,
                **seen.figures(),
                least_ms=seen.percentile_ms(0),
                parts_per_request=(parts_now - parts) / max(1, requests_now - requests),
            )
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """One subject in all turns of a case.

    Attributes:
        least_ms: least latency of all turns.
        p50_ms, requests_per_s, parts_per_request: medians over the turns.
        faster: the reference's P50 over the subject's in the same turn, as median, lowest, highest.
        more: the subject's requests/s over the reference's, in the same form.
    """

    shape: str
    clients: int
    subject: str
    least_ms: float
    p50_ms: float
    requests_per_s: float
    parts_per_request: float
    faster: tuple[float, float, float]
    more: tuple[float, float, float]

    def __str__(self) -> str:
        return (
            f"{shown(self.faster)} P50, {shown(self.more)} requests/s: {self.shape}, "
            f"{self.clients} clients, {self.subject}: {self.p50_ms:.1f} ms, "
            f"least {self.least_ms:.1f}, "
            f"{self.requests_per_s:.1f}/s, {self.parts_per_request:.2f} parts"
        )


def compare_turns(results: Iterable[TurnResult], reference: str) -> list[Comparison]:
    """Pair every subject's loops with the reference's of the same turn; keeps the order."""
    cells: dict[tuple[str, int], dict[str, list[TurnResult]]] = {}
    for each in results:
        cell = cells.setdefault((each.shape, each.clients), {})
        cell.setdefault(each.subject, []).append(each)
    return [_compared(own, cell[reference]) for cell in cells.values() for own in cell.values()]


def _compared(own: list[TurnResult], reference: list[TurnResult]) -> Comparison:
    pairs = list(zip(own, reference, strict=True))
    return Comparison(
        shape=own[0].shape,
        clients=own[0].clients,
        subject=own[0].subject,
        least_ms=min(each.least_ms for each in own),
        p50_ms=statistics.median(each.p50_ms for each in own),
        requests_per_s=statistics.median(each.requests_per_s for each in own),
        parts_per_request=statistics.median(each.parts_per_request for each in own),
        faster=_spread(other.p50_ms / each.p50_ms for each, other in pairs),
        more=_spread(each.requests_per_s / other.requests_per_s for each, other in pairs),
    )


def _spread(ratios: Iterable[float]) -> tuple[float, float, float]:
    found = list(ratios)
    return statistics.median(found), min(found), max(found)


def shown(spread: tuple[float, float, float]) -> str:
    """Format a median with the lowest and the highest value."""
    return f"{spread[0]:.2f}x ({spread[1]:.2f} to {spread[2]:.2f})"


def save_turns_plot(
    path: Path, comparisons: Sequence[Comparison], reference: str, title: str
) -> None:
    """Write a PNG, overwriting the file: the ratios of every case, with their range."""
    cases = list(dict.fromkeys(f"{each.shape}, {each.clients}" for each in comparisons))
    subjects = list(dict.fromkeys(each.subject for each in comparisons))
    size = (9, 2 + _ROW_INCHES * len(cases))
    with picture(path, 1, 2, title=title, figsize=size, sharey=True) as panels:
        for panel, (field, label) in zip(panels, _PANELS, strict=True):
            panel.axvline(1, color="#9aa5b1", label=reference)
            for number, subject in enumerate(each for each in subjects if each != reference):
                own = [each for each in comparisons if each.subject == subject]
                spreads = [getattr(each, field) for each in own]
                rows = [cases.index(f"{each.shape}, {each.clients}") + number / 6 for each in own]
                (line,) = panel.plot([each[0] for each in spreads], rows, "o", label=subject)
                lowest, highest = ([each[end] for each in spreads] for end in (1, 2))
                panel.hlines(rows, lowest, highest, color=line.get_color())
            panel.set_yticks(range(len(cases)), cases, fontsize=8)
            panel.set_title(label, fontsize=9)
        panels[0].set_ylabel("shape, clients", fontsize=8)
        panels[0].invert_yaxis()  # inverts all panels, because they share the axis
        panels[0].legend(fontsize=7)

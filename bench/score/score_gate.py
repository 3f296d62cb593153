"""Keep stock's answers, and compare the extension's with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.gate import TOLERANCE, Agreement, compare
from bench.score.plan import STOCK

OWN = 1.5
"""In half precision, answers may differ from stock's by so many times as much as stock's own
answers differ when the same requests are computed in other batches."""


@dataclass(slots=True)
class ScoreGate:
    """Compares answers, in several sets of numbered requests.

    Attributes:
        dtype: of the model; decides the tolerance.
        compare: how answers are compared, see `gate.compare`.
        agreement: name of what was compared -> agreement so far.
    """

    dtype: str
    compare: Callable[[Mapping[int, bytes], Mapping[int, bytes], float], Agreement] = compare
    agreement: dict[str, Agreement] = field(default_factory=dict)
    _expected: dict[str, dict[int, bytes]] = field(default_factory=dict)
    _tolerance: dict[str, float] = field(default_factory=dict)

    @property
    def is_half(self) -> bool:
        """Whether stock's own answers decide the tolerance, too, see `keep`."""
        return self.dtype != "float32"

    def keep(self, requests: str, answers: Mapping[int, bytes]) -> None:
        """Keep stock's answers to a set of requests, by their numbers.

        In half precision, answers to the same requests widen the tolerance, see `OWN`. A mixture of
        experts needs this: a rounding can send a token to another expert.
        """
        known, tolerance = self._expected.setdefault(requests, {}), self._tolerance_of(requests)
        if self.is_half:
            own = self.compare(known, answers, tolerance)
            tolerance = max(tolerance, OWN * own.largest_probability, OWN * own.largest_logprob)
        self._tolerance[requests] = tolerance
        known.update(answers)

    def _tolerance_of(self, requests: str) -> float:
        return self._tolerance.get(requests, TOLERANCE[self.dtype])

    def check(self, what: str, requests: str, answers: Mapping[int, bytes]) -> None:
        """Compare the extension's answers with stock's answers to the same requests.

        Raises:
            GateError: answers differ, or no request was answered by both.
        """
        seen = self.compare(self._expected.get(requests, {}), answers, self._tolerance_of(requests))
        seen.require(f"{what}, {requests} requests")
        before = self.agreement.get(what)
        self.agreement[what] = seen if before is None else before.merged_with(seen)

    def hold(self, path: str, what: str, requests: str, answers: Mapping[int, bytes]) -> None:
        """Keep the answers if `path` is stock; otherwise `check` them."""
        if path == STOCK:
            self.keep(requests, answers)
        else:
            self.check(what, requests, answers)

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Return the agreements in a form for JSON."""
        return {what: asdict(seen) for what, seen in self.agreement.items()}

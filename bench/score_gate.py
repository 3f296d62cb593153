"""Stock's answers, kept to hold the extension's against them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.gate import TOLERANCE, Agreement, compare
from bench.plan import STOCK


@dataclass(slots=True)
class ScoreGate:
    """Compares answers to scoring requests, in several sets of numbered requests.

    Attributes:
        dtype: of the model; decides the tolerance.
        agreement: so far, by what was compared.
    """

    dtype: str
    agreement: dict[str, Agreement] = field(default_factory=dict)
    _expected: dict[str, dict[int, bytes]] = field(default_factory=dict)

    def keep(self, requests: str, answers: Mapping[int, bytes]) -> None:
        """Keep what stock answered to a set of requests, by number."""
        self._expected.setdefault(requests, {}).update(answers)

    def check(self, what: str, requests: str, answers: Mapping[int, bytes]) -> None:
        """Compare with what stock answered to the same requests.

        Raises:
            GateError: they differ, or none was answered by both.
        """
        seen = compare(self._expected.get(requests, {}), answers, TOLERANCE[self.dtype])
        seen.require(f"{what}, {requests} requests")
        before = self.agreement.get(what)
        self.agreement[what] = seen if before is None else before.merged_with(seen)

    def hold(self, path: str, what: str, requests: str, answers: Mapping[int, bytes]) -> None:
        """Keep what stock answered, and `check` what any other path did."""
        if path == STOCK:
            self.keep(requests, answers)
        else:
            self.check(what, requests, answers)

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Return the agreement, ready for JSON."""
        return {what: asdict(seen) for what, seen in self.agreement.items()}

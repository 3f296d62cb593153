"""What graphs change of the cost of a forward. Pure.

A replayed forward of ``n`` tokens costs ``launch_tokens + n``, in tokens that are computed in the
same time. One that is launched kernel by kernel costs as much, but never less than the host needs
for its launches.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GraphCost:
    """The graphs of a scheduler, and what a forward without one costs; measured at start.

    Attributes:
        tokens: of the largest graph; 0: there is none, and no cost has a floor.
        eager_tokens: what the shortest forward costs that is launched kernel by kernel.
    """

    tokens: int = 0
    eager_tokens: int = 0

    def hold(self, tokens: int, groups: int) -> bool:
        """Whether the largest graph does."""
        return tokens <= self.tokens and groups <= groups_of(self.tokens)

    def forward(self, tokens: int, launch_tokens: int, *, eager: bool) -> int:
        """What a forward of so many tokens costs."""
        cost = launch_tokens + tokens
        return max(cost, self.eager_tokens) if eager and self.tokens else cost

    def leaving_pays(self, tokens: int, launch_tokens: int) -> bool:
        """Whether so many tokens cost less in one eager forward than in full replays.

        True from ``eager_tokens * tokens / (tokens + launch_tokens)`` on; above `eager_tokens` in
        any case.
        """
        return tokens * (self.tokens + launch_tokens) >= self.eager_tokens * self.tokens


NO_GRAPHS = GraphCost()


def groups_of(tokens: int) -> int:
    """Groups that a graph of so many tokens holds.

    Every group may add a tile that is not full, and tiles that are not there cost time.
    """
    return max(1, tokens // 16)

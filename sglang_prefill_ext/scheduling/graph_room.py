"""Which forwards graphs have room for, and what forwards cost with and without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sglang_prefill_ext.layout.tokens import GroupSpan


class ForwardSize(NamedTuple):
    """What decides whether a graph has room for a forward.

    Attributes:
        tokens, groups: of the forward.
        prefixes: groups with a prefix.
        rows: sequences that recurrent layers compute beside prefixes; the rows, and one for a group
            without rows.
        held: prefix tokens that are read, but not computed.
    """

    tokens: int = 0
    groups: int = 0
    prefixes: int = 0
    rows: int = 0
    held: int = 0

    @staticmethod
    def of(groups: Sequence[GroupSpan]) -> ForwardSize:
        size = ForwardSize()
        for group in groups:
            size = size.joined_by(group, group.num_tokens)
        return size

    def joined_by(self, group: GroupSpan, tokens: int, *, shared: bool = False) -> ForwardSize:
        """Return the size with one more group, of which `tokens` are computed.

        Args:
            shared: another group has the same prefix, so only the rows are added to that one.
        """
        own = not shared
        return ForwardSize(
            self.tokens + tokens,
            self.groups + own,
            self.prefixes + (own and group.prefix_len > 0),
            self.rows + max(group.num_rows, 1),
            self.held + own * group.held,
        )


def groups_of(tokens: int) -> int:
    """Return for how many groups a graph of so many tokens has room.

    Each group may add a tile that is not full, so a graph launches tiles for that many groups.
    Tiles that a forward leaves idle still cost time.
    """
    return max(1, tokens // 16)


def states_of(tokens: int) -> tuple[int, int]:
    """Return for how many prefixes and rows a graph has room if recurrent layers carry a state.

    Each may add a chunk that is not full, and a graph launches kernels for that many chunks. Idle
    ones cost time, and each chunk has a state: 1 MiB for 32 heads of 128 x 128 numbers. The state
    behind a prefix is twice as large, and set to zero in every layer.
    """
    return min(max(4, tokens // 128), 32), min(max(4, tokens // 16), 256)


def graph_holds(size: int, forward: ForwardSize, *, carries: bool) -> bool:
    """Whether a graph of `size` tokens has room for a forward.

    Args:
        carries: the model has recurrent layers that carry a state.
    """
    prefixes, rows = states_of(size)
    has_states = not carries or (forward.prefixes <= prefixes and forward.rows <= rows)
    return forward.tokens <= size and forward.groups <= groups_of(size) and has_states


@dataclass(frozen=True, slots=True)
class GraphCost:
    """The size of a scheduler's graphs, and the cost of eager forwards; measured at start.

    Costs are in tokens that are computed in the same time. A replayed forward of ``n`` tokens costs
    ``launch_tokens + n``. An eager forward, launched kernel by kernel, costs as much, but at least
    the time that the host needs for its launches.

    Attributes:
        tokens: of the largest graph; 0: there is none, and no forward has a least cost.
        eager_tokens: the cost of the shortest eager forward.
        carries: see `graph_holds`.
        most_held: held tokens that graphs can read in the KV pool; 0: they do not use the pool.
    """

    tokens: int = 0
    eager_tokens: int = 0
    carries: bool = False
    most_held: int = 0

    def hold(self, forward: ForwardSize) -> bool:
        """Whether the largest graph has room for a forward, and can read what it holds."""
        has_room = graph_holds(self.tokens, forward, carries=self.carries)
        return has_room and forward.held <= self.most_held

    def forward(self, tokens: int, launch_tokens: int, *, eager: bool) -> int:
        cost = launch_tokens + tokens
        return max(cost, self.eager_tokens) if eager and self.tokens else cost

    def leaving_pays(self, tokens: int, launch_tokens: int) -> bool:
        """Whether so many tokens cost less in one eager forward than in full replays.

        With ``G`` tokens in the largest graph, it is true from
        ``eager_tokens * G / (G + launch_tokens)`` tokens on, and so always from `eager_tokens` on.
        """
        return tokens * (self.tokens + launch_tokens) >= self.eager_tokens * self.tokens

    def recomputing_pays(self, forward: ForwardSize, launch_tokens: int) -> bool:
        """Whether a replay without the prefix cache costs less than any forward that uses it.

        Args:
            forward: with the tokens that the cache has, among those that are computed.
        """
        replayed = not self.most_held and self.hold(forward)
        return replayed and launch_tokens + forward.tokens < self.eager_tokens


NO_GRAPHS = GraphCost()

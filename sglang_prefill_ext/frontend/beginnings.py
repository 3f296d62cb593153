"""Divides prompts by how they begin, so that what they share is computed once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from sglang_prefill_ext.wire.arrays import FlatRows, Int32Array
from sglang_prefill_ext.wire.flat import shared_len
from sglang_prefill_ext.wire.prefix_policy import PrefixPolicy, lone_prefix

_BEGINNING = 16
"""Prompts begin alike if this many first tokens are equal."""

_LEAST_SAVING = 128
"""Tokens that a separate packed request must save at least: about what sending it costs."""


class Beginning(NamedTuple):
    """Prompts that become one packed request.

    Attributes:
        members: indices of the prompts.
        prefix: how many tokens they share, at most all but one.
        repeated: it came before, or will come again, so the prefix cache is to keep it.
    """

    members: list[int]
    prefix: int
    repeated: bool = False


def shared_beginnings(
    prompts: Sequence[Int32Array],
    adapter: str,
    policy: PrefixPolicy | None,
    first_reads: Sequence[int] | None = None,
) -> list[Beginning]:
    """Divide prompts by how they begin.

    Args:
        policy: remembers earlier prompts, of which the prefix cache may have what a prompt begins
            with; None where there is no prefix cache.
        first_reads: position of the first read of each prompt, from where on no cache helps; None
            if only last tokens are read.

    Returns:
        One for each beginning that is worth a request, and one for all other prompts.
    """
    alike: defaultdict[bytes, list[int]] = defaultdict(list)
    for number, prompt in enumerate(prompts):
        alike[prompt[:_BEGINNING].tobytes()].append(number)
    several = [own for own in alike.values() if len(own) > 1]
    known = _known_tokens(prompts, several, adapter, policy)
    if known and first_reads is not None:
        known = {each: min(tokens, first_reads[each]) for each, tokens in known.items()}
    parts: list[Beginning] = []
    for own in alike.values():
        parts += _Tree(prompts, own, known).divided() if len(own) > 1 else [Beginning(own, 0)]
    groups, others = [], []
    least_saving = 0 if len(parts) == 1 else _LEAST_SAVING
    for part in parts:
        if len(part.members) == 1 and not part.prefix:
            (member,) = part.members
            part = Beginning([member], *lone_prefix(prompts[member], adapter, policy))
        if max(len(part.members) - 1, 1) * part.prefix >= least_saving:
            groups.append(part)
        else:
            others += part.members
    if others:
        groups.append(Beginning(others, _shared_by(prompts, others)))
    return groups


def _known_tokens(
    prompts: Sequence[Int32Array],
    parts: Iterable[list[int]],
    adapter: str,
    policy: PrefixPolicy | None,
) -> dict[int, int]:
    """How many tokens of each of these prompts the cache has or is to keep, because they came
    before or will come again; empty without a prefix cache."""
    members = [each for part in parts for each in part]
    if policy is None or not members:
        return {}
    # The last token of a prompt is never in a prefix.
    kept = policy.tokens_kept([prompts[each][:-1] for each in members], adapter)
    return dict(zip(members, kept, strict=True))


@dataclass(slots=True)
class _Branch:
    """Neighbours in the order of their tokens that share `depth` tokens; or one prompt, entirely.

    Attributes:
        first: place of the first one.
        saved: tokens that its `groups` save.
    """

    depth: int
    first: int
    saved: int = 0
    groups: list[Beginning] = field(default_factory=list)


class _Tree:
    """Prompts that share their first tokens, and some of them more.

    Prompts of a benchmark, for instance, all share the task, and those of a question much more.
    Prompts of a judge share its instructions, and each passage may have come before.

    Args:
        prompts, members: those of `prompts` with these indices.
        known: tokens of each prompt that came before, if any.
    """

    def __init__(
        self, prompts: Sequence[Int32Array], members: list[int], known: Mapping[int, int]
    ) -> None:
        self._prompts, self._members, self._known = prompts, members, known
        self._common = _shared_by(prompts, members)

    def divided(self) -> list[Beginning]:
        """Those for which a longer prefix than what all share saves tokens, and then the others."""
        left = sum(len(self._prompts[each]) - self._common for each in self._members)
        most_known = max(self._known.get(each, 0) for each in self._members)
        # A group saves at most all the tokens that are left, and costs what all share once more.
        if left <= _LEAST_SAVING + max(0, self._common - most_known):
            return [Beginning(self._members, self._common)]
        groups = self._groups()
        taken = {each for group in groups for each in group.members}
        others = [each for each in self._members if each not in taken]
        return [*groups, Beginning(others, self._common)] if others else groups

    def _groups(self) -> list[Beginning]:
        """The groups that save most tokens.

        A group of ``n`` prompts that share ``d`` tokens more than all do saves ``n * d``. It costs
        a request and its prefix, as far as that is not known. Groups are branches of the tree, and
        none lies in another: for each branch, either it or the best groups inside are taken.
        """
        prompts, common = self._prompts, self._common
        order = sorted(self._members, key=lambda each: prompts[each][common:].tobytes())
        open_branches = [_Branch(common, 0)]
        depths = [*_depths([prompts[each] for each in order], common), common]
        for last, depth in enumerate(depths):
            open_branches.append(_Branch(len(prompts[order[last]]), last))
            while (branch := open_branches[-1]).depth > depth:
                open_branches.pop()
                self._close(branch, order[branch.first : last + 1])
                if open_branches[-1].depth < depth:
                    open_branches.append(_Branch(depth, branch.first))
                open_branches[-1].saved += branch.saved
                open_branches[-1].groups += branch.groups
        return open_branches[0].groups

    def _close(self, branch: _Branch, own: list[int]) -> None:
        """Make a branch one group if that saves more than the groups inside."""
        depth, common = branch.depth, self._common
        cached = min(depth, self._known.get(own[0], 0))
        saved = len(own) * (depth - common) - (depth - cached) - _LEAST_SAVING
        if saved > branch.saved:
            prefix = cached if len(own) == 1 else depth
            branch.saved = saved
            branch.groups = [Beginning(sorted(own), prefix, repeated=cached > common)]


def _depths(ordered: Sequence[Int32Array], common: int) -> Iterator[int]:
    """How many tokens each prompt shares with the next one, at most all but one of either."""
    for one, other in pairwise(ordered):
        most = min(len(one), len(other)) - 1
        differ = one[common:most] != other[common:most]
        yield common + int(differ.argmax()) if differ.any() else most


def _shared_by(prompts: Sequence[Int32Array], members: Iterable[int]) -> int:
    """How many leading tokens all members share; at least one stays in each. 0 for one prompt."""
    own = [prompts[each] for each in members]
    return shared_len(FlatRows.joined(own)) if len(own) > 1 else 0

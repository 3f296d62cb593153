"""Divides prompts by how they begin, so that what they share is computed once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from sglang_prefill_ext.frontend.pack import shared_len
from sglang_prefill_ext.wire.arrays import FlatRows, Int32Array, lens_of_rows
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
        repeated: this prefix came before, so the prefix cache is to keep it.
    """

    members: list[int]
    prefix: int
    repeated: bool = False


def shared_beginnings(
    prompts: Sequence[Int32Array], adapter: str, policy: PrefixPolicy | None
) -> list[Beginning]:
    """Divide prompts by how they begin.

    Args:
        policy: remembers earlier prompts, whose prefix a prompt may share that begins like none of
            the others; None where there is no prefix cache.

    Returns:
        One for each beginning that is worth a request, and one for all other prompts.
    """
    alike: defaultdict[bytes, list[int]] = defaultdict(list)
    for number, prompt in enumerate(prompts):
        alike[prompt[:_BEGINNING].tobytes()].append(number)
    parts: list[Beginning] = []
    for members in alike.values():
        parts += _divided(prompts, members) if len(members) > 1 else [Beginning(members, 0)]
    groups, others = [], []
    least_saving = 0 if len(parts) == 1 else _LEAST_SAVING
    for part in parts:
        if len(part.members) == 1:
            (member,) = part.members
            part = Beginning([member], *lone_prefix(prompts[member], adapter, policy))
        if max(len(part.members) - 1, 1) * part.prefix >= least_saving:
            groups.append(part)
        else:
            others += part.members
    if others:
        groups.append(Beginning(others, _shared_by(prompts, others)))
    return groups


def _divided(prompts: Sequence[Int32Array], members: list[int]) -> list[Beginning]:
    """Those of some prompts that share more than all do, where that saves tokens, and the others.

    Prompts of a benchmark, for instance, all share the task, and those of a question much more.
    """
    common = _shared_by(prompts, members)
    whole = Beginning(members, common)
    left = sum(len(prompts[each]) - common for each in members)
    if len(members) == 2 or left <= _LEAST_SAVING + common:
        return [whole]  # no group could save more than all the tokens behind what is common
    groups = _deeper(prompts, members, common)
    taken = {each for group in groups for each in group.members}
    others = [each for each in members if each not in taken]
    return [*groups, whole._replace(members=others)] if others else groups


@dataclass(slots=True)
class _Branch:
    """Neighbours in the order of their tokens that share `depth` tokens.

    Attributes:
        first: place of the first one.
        saved: tokens that its `groups` save.
    """

    depth: int
    first: int
    saved: int = 0
    groups: list[Beginning] = field(default_factory=list)


def _deeper(prompts: Sequence[Int32Array], members: list[int], common: int) -> list[Beginning]:
    """The groups that save most tokens, each with a longer prefix than all of `members` share.

    A group of ``n`` prompts that share ``d`` tokens saves ``n * (d - common)``, and costs its
    prefix and a request. Groups are branches of the tree of all prompts, and none lies in another:
    for each branch, either it or the best groups inside are taken.
    """
    order = sorted(members, key=lambda each: prompts[each][common:].tobytes())
    root = _Branch(common, 0)
    open_branches = [root]
    for last, depth in enumerate([*_depths([prompts[each] for each in order], common), common]):
        first = last
        while (branch := open_branches[-1]).depth > depth:
            open_branches.pop()
            first = branch.first
            own = order[first : last + 1]
            saved = len(own) * (branch.depth - common) - branch.depth - _LEAST_SAVING
            if saved > branch.saved:
                branch.saved, branch.groups = saved, [Beginning(sorted(own), branch.depth)]
            if open_branches[-1].depth < depth:
                open_branches.append(_Branch(depth, first))
            open_branches[-1].saved += branch.saved
            open_branches[-1].groups += branch.groups
        if branch.depth < depth:
            open_branches.append(_Branch(depth, first))
    return root.groups


def _depths(ordered: Sequence[Int32Array], common: int) -> Iterator[int]:
    """How many tokens each prompt shares with the next one, at most all but one of either."""
    for one, other in pairwise(ordered):
        most = min(len(one), len(other)) - 1
        differ = one[common:most] != other[common:most]
        yield common + int(differ.argmax()) if differ.any() else most


def _shared_by(prompts: Sequence[Int32Array], members: Iterable[int]) -> int:
    """How many leading tokens all members share; at least one stays in each. 0 for one prompt."""
    own = [prompts[each] for each in members]
    return shared_len(FlatRows(np.concatenate(own), lens_of_rows(own))) if len(own) > 1 else 0

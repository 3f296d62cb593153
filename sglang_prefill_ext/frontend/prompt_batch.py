"""Prompts of many calls as few packed requests; those that begin alike share a prefix."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sglang_prefill_ext.frontend.read_places import ReadPlaces
from sglang_prefill_ext.wire.overrides import NO_OVERRIDES, OverrideArray
from sglang_prefill_ext.wire.packed import NO_INTS, Float32Array, Int32Array, PackedRows

_BEGINNING = 16
"""Tokens by which prompts of one beginning are told from others."""

_LEAST_SAVING = 128
"""Tokens that a packed request of its own must save: about what its way costs."""

_WORTH_CACHING = 256
"""Tokens of a prompt that is worth a packed request for what a prefix cache may have of it."""


@dataclass(frozen=True, slots=True)
class PromptGroup:
    """One packed request for some of the prompts.

    Attributes:
        members: the number of each row's prompt.
    """

    members: list[int]
    rows: PackedRows

    def tables(self, values: Float32Array) -> list[Float32Array]:
        """Return the vector of every member, float32 ``[width]``."""
        return list(values.reshape(len(self.members), -1))


def pack_prompts(
    prompts: Sequence[Int32Array],
    vector_width: int,
    overrides: OverrideArray = NO_OVERRIDES,
    *,
    adapter: str = "",
    caching: bool,
) -> list[PromptGroup]:
    """Pack prompts, each with at least one token and all ids valid, into requests for vectors.

    Args:
        vector_width, overrides, adapter: see `PackedRows`.
        caching: see `shared_beginnings`.

    Returns:
        One request for each of the `shared_beginnings`.
    """
    groups = []
    for members, prefix in shared_beginnings(prompts, caching=caching):
        tokens, lens = flat_tokens([prompts[each] for each in members], prefix)
        rows = PackedRows(
            tokens,
            prefix,
            lens,
            label_ids=NO_INTS,
            label_lens=NO_INTS,
            vector_width=vector_width,
            overrides=overrides,
            adapter=adapter,
        )
        groups.append(PromptGroup(members, rows))
    return groups


def pack_read_places(
    prompts: Sequence[Int32Array],
    places: Sequence[Sequence[int]],
    vector_width: int,
    overrides: OverrideArray,
    adapter: str,
) -> PackedRows:
    """Pack prompts into one request for vectors at given places; see `ReadPlaces`."""
    reads = ReadPlaces.of(list(map(len, prompts)), places)
    prefix = min(_shared_prefix_len(prompts), reads.first)
    tokens, lens = flat_tokens(prompts, prefix)
    return PackedRows(
        tokens,
        prefix,
        lens,
        label_ids=NO_INTS,
        label_lens=reads.wanted.astype(np.int32),
        vector_width=vector_width,
        read_lens=reads.lens,
        overrides=overrides,
        adapter=adapter,
    )


def shared_beginnings(
    prompts: Sequence[Int32Array], *, caching: bool
) -> list[tuple[list[int], int]]:
    """Divide prompts by how they begin.

    Args:
        caching: there is a prefix cache, which may know the beginning of a long prompt that none
            of the others shares.

    Returns:
        The members' numbers and the length of the prefix that they share, at most all tokens but
        one: for each beginning that is worth a request, and for all other prompts.
    """
    alike: defaultdict[bytes, list[int]] = defaultdict(list)
    for number, prompt in enumerate(prompts):
        alike[prompt[:_BEGINNING].tobytes()].append(number)
    groups, others = [], []
    for members in alike.values():
        if caching and len(members) == 1 and len(prompts[members[0]]) >= _WORTH_CACHING:
            groups.append((members, len(prompts[members[0]]) - 1))
            continue
        prefix = _shared_prefix_len([prompts[each] for each in members])
        if len(alike) == 1 or (len(members) - 1) * prefix >= _LEAST_SAVING:
            groups.append((members, prefix))
        else:
            others += members
    if others:
        groups.append((others, _shared_prefix_len([prompts[each] for each in others])))
    return groups


def flat_tokens(prompts: Sequence[Int32Array], prefix: int) -> tuple[Int32Array, Int32Array]:
    """Return the tokens of prompts that share a prefix, and the lengths of what follows it."""
    suffixes = [prompt[prefix:] for prompt in prompts]
    lens = np.fromiter(map(len, suffixes), dtype=np.int32, count=len(suffixes))
    return np.concatenate([prompts[0][:prefix], *suffixes]), lens


def _shared_prefix_len(prompts: Sequence[Int32Array]) -> int:
    """Leading tokens that all prompts share; at least one token stays in each, 0 for one."""
    first = prompts[0]
    shared = 0 if len(prompts) == 1 else min(map(len, prompts)) - 1
    for other in prompts[1:]:
        if not shared:
            break
        differing = np.flatnonzero(first[:shared] != other[:shared])
        if len(differing):
            shared = int(differing[0])
    return shared

"""Packs the prompts of many calls into few requests; prompts that begin alike share a prefix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.frontend.beginnings import shared_beginnings
from sglang_prefill_ext.frontend.pack import shared_once
from sglang_prefill_ext.wire.arrays import (
    NO_INTS,
    NO_OVERRIDES,
    FlatRows,
    Float32Array,
    Int32Array,
    OverrideArray,
    int_array,
    lens_of_rows,
)
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.prefix_policy import PrefixPolicy
from sglang_prefill_ext.wire.read import Read, Vectors


@dataclass(frozen=True, slots=True)
class PackedGroup:
    """One packed request for some of the prompts of a batch.

    Attributes:
        members: the index of each row's prompt.
        keep_prefix: the rows' prefix will come again, whether or not the client says so.
    """

    members: list[int]
    rows: PackedRows
    keep_prefix: bool = False

    def tables(self, values: Float32Array) -> list[Float32Array]:
        """Divide the values of the answer among the members, evenly and in their order."""
        return list(values.reshape(len(self.members), -1))


@dataclass(frozen=True, slots=True)
class ReadPlaces:
    """The reads of prompts at given places: of each its tokens from its first place to its end.

    The reads of a packed row are always its last tokens; those in between ask for nothing.

    Attributes:
        first: the first place of any prompt, and so the longest prefix that they may share.
        lens: number of reads of each prompt; int32 ``[prompts]``.
        wanted: whether a read is one of the places; bool ``[sum(lens)]``.
    """

    first: int
    lens: Int32Array
    wanted: NDArray[np.bool_]

    @classmethod
    def of(cls, prompt_lens: Sequence[int], places: Sequence[Sequence[int]]) -> ReadPlaces:
        """The reads of prompts.

        Args:
            places: positions of tokens in each prompt, at least one, ascending.
        """
        lens = [tokens - own[0] for tokens, own in zip(prompt_lens, places, strict=True)]
        ends = np.cumsum(lens).tolist()
        wanted = np.zeros(ends[-1], dtype=np.bool_)
        for end, tokens, own in zip(ends, prompt_lens, places, strict=True):
            wanted[np.array(own) + (end - tokens)] = True
        return cls(min(own[0] for own in places), int_array(lens), wanted)

    def packed(
        self, prompts: FlatRows, read: Read, overrides: OverrideArray, adapter: str = ""
    ) -> PackedRows:
        """Pack the prompts into one request that is read at these places."""
        tokens, prefix, lens = shared_once(NO_INTS, prompts, most=self.first)
        return PackedRows(
            *(tokens, prefix, lens, read, self.lens), overrides=overrides, adapter=adapter
        )


def pack_prompts(
    prompts: Sequence[Int32Array],
    vector_width: int,
    overrides: OverrideArray = NO_OVERRIDES,
    *,
    adapter: str = "",
    policy: PrefixPolicy | None = None,
) -> list[PackedGroup]:
    """Pack prompts, each with at least one token and all ids valid, into requests for vectors.

    Args:
        vector_width: see `Vectors`.
        overrides, adapter: see `PackedRows`.
        policy: see `shared_beginnings`.

    Returns:
        One request for each of the `shared_beginnings`.
    """
    groups = []
    for members, prefix, repeated in shared_beginnings(prompts, adapter, policy):
        tokens, lens = flat_tokens([prompts[each] for each in members], prefix)
        rows = PackedRows(
            tokens, prefix, lens, Vectors(vector_width), overrides=overrides, adapter=adapter
        )
        groups.append(PackedGroup(members, rows, repeated))
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
    read = Vectors(vector_width, reads.wanted.astype(np.int32))
    return reads.packed(FlatRows.joined(prompts), read, overrides, adapter)


def flat_tokens(prompts: Sequence[Int32Array], prefix: int) -> tuple[Int32Array, Int32Array]:
    """Return the tokens of prompts that share a prefix, and the lengths of what follows it."""
    suffixes = [prompt[prefix:] for prompt in prompts]
    return np.concatenate([prompts[0][:prefix], *suffixes]), lens_of_rows(suffixes)

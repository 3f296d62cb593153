"""Prompts that share a text: the shared text is encoded once, the rest of each on its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sglang_prefill_ext.texts.boundary import Boundaries
from sglang_prefill_ext.texts.encoder import Encoder
from sglang_prefill_ext.texts.frame import Frame, with_ids
from sglang_prefill_ext.wire.arrays import NO_INTS, FlatRows, Int32Array
from sglang_prefill_ext.wire.checks import check_repeated


@dataclass(frozen=True, slots=True, eq=False)
class Spliced:
    """Prompts of one request, as ids.

    Attributes:
        shared: with which all prompts begin, or end, int32.
        rest: of every prompt.
    """

    shared: Int32Array
    rest: FlatRows

    def whole(self, *, item_first: bool, few: int | None = None) -> FlatRows:
        """Return the ids of whole prompts, of the first `few` of them if that is given."""
        rest = self.rest if few is None else self.rest.first(few)
        if item_first:
            return with_ids(rest, NO_INTS, self.shared)
        return with_ids(rest, self.shared, NO_INTS)


@dataclass(frozen=True, slots=True)
class Splice:
    """Cuts prompts at a proven boundary of the shared text.

    Args:
        boundaries: of the tokenizer.
        frame: the special tokens around a prompt.
    """

    boundaries: Boundaries
    frame: Frame

    def encode(
        self, encoder: Encoder, shared: str, items: Sequence[str], *, item_first: bool
    ) -> Spliced | None:
        """Encode ``shared + item``, or ``item + shared``, of every item.

        Returns:
            None where there is nothing to gain: one item, or no boundary in the shared text.

        Raises:
            RequestError: see `check_repeated`.
            Exception: see `Encoder.rows`.
        """
        if len(items) < 2:
            return None
        if item_first:
            return self._item_first(encoder, shared, items)
        cut = self.boundaries.last(shared)
        check_repeated(shared[cut:], items)
        own = [shared[cut:] + item for item in items]
        # Templates leave the query to the items, all of which then begin alike.
        further = self.boundaries.last(_common_beginning(own))
        head = shared[:cut] + own[0][:further]
        if not head:
            return None
        ids, rest = _head_and_rest(encoder, head, (text[further:] for text in own))
        return Spliced(
            np.concatenate([self.frame.before, ids]), with_ids(rest, NO_INTS, self.frame.after)
        )

    def _item_first(self, encoder: Encoder, shared: str, items: Sequence[str]) -> Spliced | None:
        cut = self.boundaries.first(shared)
        if cut == len(shared):
            return None
        check_repeated(shared[:cut], items)
        ids, rest = _head_and_rest(encoder, shared[cut:], (item + shared[:cut] for item in items))
        return Spliced(
            np.concatenate([ids, self.frame.after]), with_ids(rest, self.frame.before, NO_INTS)
        )


def _common_beginning(texts: Sequence[str]) -> str:
    low, high = min(texts), max(texts)
    differing = (at for at, (a, b) in enumerate(zip(low, high, strict=False)) if a != b)
    return low[: next(differing, len(low))]


def _head_and_rest(
    encoder: Encoder, head: str, others: Iterable[str]
) -> tuple[Int32Array, FlatRows]:
    rows = encoder.rows([head, *others])
    cut = int(rows.counts[0])
    return rows.values[:cut], FlatRows(rows.values[cut:], rows.counts[1:])

"""Build the packed request of a call whose prompts are texts."""

from __future__ import annotations

from collections.abc import Sequence

from sglang_prefill_ext.frontend.flat import pack_flat
from sglang_prefill_ext.frontend.link import SchedulerLink
from sglang_prefill_ext.wire.packed import Int32Array, PackedRows


def pack_texts(
    link: SchedulerLink,
    query: str,
    items: Sequence[str],
    item_first: bool,
    labels: tuple[Int32Array, Int32Array],
    vocab_size: int,
) -> PackedRows:
    """Encode and pack ``query + item`` texts (``item + query`` if `item_first`).

    Raises:
        RequestError: a text has no tokens, or an id lies outside the vocabulary.
        Exception: whatever the tokenizer raises of a text that it cannot read.
    """
    shared, rest = link.encode_joined(query, items, item_first=item_first)
    return pack_flat(shared, rest, item_first, labels, vocab_size)

"""Build the packed request of a scoring call with embeddings of the user's own."""

from __future__ import annotations

from collections.abc import Callable

from sglang_prefill_ext.frontend.call import ScoreCall, prompts_of
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.overrides import place_overrides
from sglang_prefill_ext.frontend.pack import pack_token_ids
from sglang_prefill_ext.frontend.prompts import flatten_ids
from sglang_prefill_ext.wire.packed import Int32Array, PackedRows


def pack_overridden(
    call: ScoreCall,
    labels: tuple[Int32Array, Int32Array],
    encode: Callable[..., list[list[int]]],
    vocab_size: int,
    hidden_size: int,
) -> PackedRows:
    """Pack an eligible call whose embeddings are arrays.

    Args:
        encode: of `SchedulerLink`.

    Raises:
        StockPathTaken: a prompt has not as many placeholders as embeddings, which SGLang refuses.
        RequestError: a prompt is empty, an id lies outside the vocabulary, or an embedding is of
            another width or kind than the model's, or not finite.
    """
    query, items = prompts_of(call)
    if isinstance(query, str):
        # SGLang joins the two as token ids here, not as texts.
        (query,), items = encode([query]), encode(items, continued=True)
    flatten_ids([query, *items], vocab_size, field="query, items")
    placed = place_overrides(call, query, items, hidden_size)
    if placed is None:
        raise StockPathTaken("unusual_input")
    return pack_token_ids(placed.query, placed.items, False, labels, vocab_size, placed.overrides)

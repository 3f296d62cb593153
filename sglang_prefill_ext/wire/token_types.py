"""Types of tokens, such as BERT's of the first and the second text of a pair, in packed token ids.

A token of type t has the id ``id + t * vocab_size``. Prompts that differ in types alone so differ
in their ids, and whatever compares tokens compares types, too.
"""

from __future__ import annotations

from collections.abc import Sequence


def typed_ids(ids: Sequence[int], types: Sequence[int], vocab_size: int) -> list[int]:
    """Return the ids of typed tokens.

    Args:
        ids: each below `vocab_size`.
        types: one a token, >= 0.
    """
    return [token + kind * vocab_size for token, kind in zip(ids, types, strict=True)]

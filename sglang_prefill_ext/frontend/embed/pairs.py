"""Pairs of texts, as `/v1/rerank` and `Engine.rerank` send them to a model with a head."""

from __future__ import annotations

from typing import Any


def text_pairs(text: Any) -> list[tuple[str, str]]:
    """Return pairs of a query and a document; empty where `text` is no list of such pairs.

    Args:
        text: of an `EmbeddingReqInput` whose `is_cross_encoder_request` is set.
    """
    if not isinstance(text, list) or not all(_is_pair(each) for each in text):
        return []
    return [(query, document) for query, document in text]


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) == 2
        and all(isinstance(part, str) for part in value)
    )

"""Scoring requests that send embeddings in place of some tokens."""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

from tests.integration.support.client import Json, score_body

HIDDEN = 64
PLACEHOLDER = 77


def embeds(seed: int, *shape: int, hidden: int = HIDDEN) -> NDArray[np.float32]:
    """Embeddings that float16 holds exactly, about as large as the model's own."""
    drawn = np.random.default_rng(seed).standard_normal((*shape, hidden)) / 8
    return drawn.astype(np.float16).astype(np.float32)


def body_with(
    seed: int, prefix: int, suffixes: list[int], in_query: int, in_item: int, hidden: int = HIDDEN
) -> Json:
    """A request whose prompts have placeholders at random places, and embeddings for them."""
    rng = random.Random(seed)
    body = score_body(seed, prefix, suffixes)

    def insert(ids: list[int], count: int) -> list[int]:
        kept = [one + (one == PLACEHOLDER) for one in ids]
        for _ in range(count):
            kept.insert(rng.randint(0, len(kept)), PLACEHOLDER)
        return kept

    return body | {
        "query": insert(body["query"], in_query),
        "items": [insert(item, in_item) for item in body["items"]],
        "embed_override_token_id": PLACEHOLDER,
        "query_embed_overrides": embeds(seed, in_query, hidden=hidden).tolist(),
        "item_embed_overrides": embeds(seed + 1, len(suffixes), in_item, hidden=hidden).tolist(),
    }

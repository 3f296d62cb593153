"""Scores the items of one record, for all commands that do."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.client.clients import PrefillClient
from sglang_prefill_ext.client.kinds import is_list
from sglang_prefill_ext.client.options import Options
from sglang_prefill_ext.client.records import Fields, field, label_ids
from sglang_prefill_ext.frontend.answers import softmax


def score_arguments(fields: Fields, default_labels: str | None) -> Fields:
    """What `PrefillClient.score` takes of a record; a lone text is one item.

    Raises:
        RequestError: a field is missing, or labels are no numbers.
    """
    query, items = field(fields, "query"), field(fields, "items")
    return {
        "query": query,
        "items": [items] if isinstance(items, str) else items,
        "label_token_ids": label_ids(fields.get("label_token_ids") or default_labels),
    }


def item_scores(client: PrefillClient, arguments: Fields, options: Options) -> NDArray[np.float64]:
    """Ask for scores, ``[items, labels or classes]``: probabilities that add up to 1.

    Of a lone label or class that would be 1 for every item. So a lone label has its probability
    over the vocabulary, and a lone class the number that the model makes.

    Args:
        arguments: see `score_arguments`.
    """
    labels = arguments["label_token_ids"]
    several = labels is not None and not _are_lone(labels)
    scores = client.score(**arguments, apply_softmax=several, options=options).scores
    return softmax(scores) if labels is None and scores.shape[1] > 1 else scores


def _are_lone(labels: Any) -> bool:
    """Whether there is one label, or one of each item."""
    rows = labels if is_list(labels) and any(map(is_list, labels)) else [labels]
    return all(is_list(row) and len(row) == 1 for row in rows)

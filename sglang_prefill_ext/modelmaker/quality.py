"""Ranking quality: how good is an order of items of known relevance."""

from collections.abc import Sequence

import numpy as np


def ndcg(relevance: Sequence[float], k: int) -> float:
    """Normalised discounted cumulative gain of the first `k` places, in [0, 1].

    Args:
        relevance: graded relevance (at least 0) of every candidate, in ranked order, best
            first. Candidates that were not placed must be in it too: the ideal order is
            taken over all of them.
        k: places that count, at least 1; more than there are candidates means all of them.

    ``DCG@k = sum_{i=1..k} (2^relevance_i - 1) / log2(i + 1)`` and ``NDCG@k = DCG@k / ideal
    DCG@k`` (Järvelin and Kekäläinen 2002, with the exponential gain of Burges et al. 2005).
    Where nothing is relevant, or there are no candidates, no order is better than another
    and the result is 0, as in scikit-learn.
    """
    assert k >= 1, f"NDCG needs at least one place, got k={k}"
    ideal = _dcg(sorted(relevance, reverse=True)[:k])
    return _dcg(relevance[:k]) / ideal if ideal else 0.0


def _dcg(relevance: Sequence[float]) -> float:
    gains = np.exp2(np.asarray(relevance, dtype=np.float64)) - 1
    return float(np.sum(gains / np.log2(np.arange(2, len(gains) + 2))))

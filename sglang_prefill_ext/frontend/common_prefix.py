"""The longest common token prefix of a request's rows."""

from __future__ import annotations

from collections.abc import Sequence


def common_prefix_len(rows: Sequence[list[int]]) -> int:
    """Return how many leading tokens all rows share; 0 without rows.

    The lexicographically smallest and largest row differ first where any two rows differ
    first, so comparing these two is enough; finding them runs at C speed for lists.
    """
    if not rows:
        return 0
    low, high = min(rows), max(rows)
    for position, (a, b) in enumerate(zip(low, high, strict=False)):
        if a != b:
            return position
    return min(len(low), len(high))


def shared_prefix_len(rows: Sequence[list[int]], known: int = 0) -> int:
    """Return the prefix length of a packed request: at least one token stays in every row.

    A single row has nothing to share with, so its prefix is 0 and no merge is needed.

    Args:
        rows: what follows the `known` tokens in each row; may be empty where `known` > 0.
        known: tokens that all rows are known to share in front of `rows`.

    Returns:
        The length in tokens, counted from the start of the prompts.
    """
    if len(rows) <= 1:
        return 0
    shortest = min(map(len, rows))
    return max(0, min(known + common_prefix_len(rows), known + shortest - 1))

"""Which GPU computes which share of an expert's rows. Pure."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Shares: TypeAlias = NDArray[np.float64]
"""The share of each expert's rows that each GPU computes; ``[..., gpus, experts]``. The shares of
an expert sum to 1."""


def in_order(experts: int, gpus: int) -> Shares:
    """Place the first experts on the first GPU, and so on, as engines do by default.

    Args:
        gpus: a divisor of `experts`.
    """
    return np.repeat(np.eye(gpus), experts // gpus, axis=1)


def rebalanced(load: NDArray[Any], gpus: int, copies: int) -> Shares:
    """Place experts by a load: busy experts get copies, so that GPUs have about equal work.

    The rule of DeepSeek's expert parallelism load balancer without groups of nodes (EPLB,
    github.com/deepseek-ai/EPLB; "DeepSeek-V3 Technical Report", 2024, section 3.4): each copy goes
    to the expert with the most rows per copy. Then copies are placed, the busiest first, each on
    the GPU with the least work that has room. All GPUs have room for equally many copies. The
    copies of an expert share its rows evenly. If the busiest GPU then has more rows than with
    `in_order`, the experts stay in order.

    Args:
        load: rows of each expert, >= 0; ``[experts]``.
        copies: copies in all besides the first of each expert; `gpus` must divide the number of
            experts and copies together.
    """
    count = np.ones(len(load), dtype=np.int64)
    for _ in range(copies):
        count[(load / count).argmax()] += 1
    slots = np.repeat(np.arange(len(load)), count)
    slots = slots[(-load / count)[slots].argsort(kind="stable")]
    shares, rows = np.zeros((gpus, len(load))), np.zeros(gpus)
    room = np.full(gpus, len(slots) // gpus)
    for expert in slots.tolist():
        gpu = int(np.where(room > 0, rows, np.inf).argmin())
        shares[gpu, expert] += 1 / count[expert]
        rows[gpu] += load[expert] / count[expert]
        room[gpu] -= 1
    fixed = in_order(len(load), gpus)
    return shares if (shares @ load).max() <= (fixed @ load).max() else fixed

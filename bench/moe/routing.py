"""Routing of tokens to experts: drawn evenly, drawn with a skew, or recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RECORDED = Path(__file__).with_name("recorded.json")
"""Written by ``python -m bench.moe.record_routing``."""

LAYERS = 2
SKEW = 0.8  # of Zipf's law: the share of the expert at a rank is rank ** -SKEW
CHANGE = 0.3  # standard deviation of a share's logarithm from one forward to the next


@dataclass(frozen=True, slots=True)
class Forward:
    """One forward.

    Attributes:
        counts: rows of each expert; ``[layers, experts]``.
    """

    tokens: int
    top_k: int
    counts: NDArray[Any]


def drawn(
    kind: str,
    experts: int,
    top_k: int,
    tokens: int,
    forwards: int,
    seed: int,
    *,
    layers: int = LAYERS,
    skew: float = SKEW,
) -> Iterator[Forward]:
    """Draw forwards of equal length.

    Each token takes `top_k` different experts, as a router does: those with the largest sum of
    their share's logarithm and a Gumbel draw.

    Args:
        kind: ``uniform`` or ``zipf``.
        skew: see `SKEW`.
    """
    rng = np.random.default_rng([seed, experts, top_k, tokens])
    ranks = np.stack([rng.permutation(experts) + 1.0 for _ in range(layers)])
    logs = -skew * np.log(ranks) if kind == "zipf" else np.zeros_like(ranks)
    for _ in range(forwards):
        now = logs + (CHANGE * rng.standard_normal(logs.shape) if kind == "zipf" else 0)
        counts = np.stack([_counts(layer, tokens, top_k, rng) for layer in now])
        yield Forward(tokens, top_k, counts)


def _counts(
    logs: NDArray[np.float64], tokens: int, top_k: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    scores = logs + rng.gumbel(size=(tokens, len(logs)))
    chosen = np.argpartition(scores, -top_k, axis=1)[:, -top_k:]
    return np.bincount(chosen.ravel(), minlength=len(logs))


def recorded(experts: int, top_k: int) -> list[Forward]:
    """Return the recorded forwards of the model with these sizes, in order; empty without one."""
    kept = json.loads(RECORDED.read_text())["forwards"]
    return [
        Forward(each["tokens"], top_k, np.array(each["counts"]))
        for each in kept
        if (each["experts"], each["top_k"]) == (experts, top_k)
    ]

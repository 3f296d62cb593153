"""The OpenAI client's embeddings, and how well they find items of the same category."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import numpy as np
from openai import OpenAI

from bench.gate import Matrix
from bench.judges.opinion import Opinion
from sglang_prefill_ext.modelmaker.catalogue import items

BATCH = 16
"""Texts of a request; every second request has one text instead."""


class OpenAIJudge:
    """Embeds the whole catalogue."""

    preset = "qwen3"
    flags: tuple[str, ...] = ("--is-embedding",)
    tolerance = 1e-5
    """Of a component of a vector of length 1. The cosine of two such vectors is above 1 - 1e-8."""

    def __init__(self) -> None:
        self.name = f"openai {importlib.metadata.version('openai')}"

    def ask(self, base_url: str, model: Path, scratch: Path) -> Opinion:
        """Embed every item.

        Raises:
            openai.OpenAIError: the server failed.
        """
        texts = [item.text for item in items()]
        vectors: list[list[float]] = []
        requests = 0
        with OpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0) as client:
            while len(vectors) < len(texts):
                size = 1 if requests % 2 else BATCH
                part = texts[len(vectors) : len(vectors) + size]
                answer = client.embeddings.create(
                    model=model.name, input=part if size > 1 else part[0]
                )
                vectors += [each.embedding for each in answer.data]
                requests += 1
        numbers = np.array(vectors)
        marks = {"nearest of the same category": same_category(numbers)}
        return Opinion(requests, numbers.ravel(), marks)


def same_category(vectors: Matrix) -> float:
    """Share of the items whose nearest other item, by cosine, is of the same category."""
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    categories = np.array([item.category for item in items()])
    return float(np.mean(categories == categories[cosines.argmax(axis=1)]))

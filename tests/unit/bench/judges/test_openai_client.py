from __future__ import annotations

import numpy as np
import pytest

from bench.judges.openai_client import same_category
from sglang_prefill_ext.modelmaker.catalogue import items


def test_vectors_that_are_their_category_find_it() -> None:
    names = sorted({item.category for item in items()})
    vectors = np.array([np.eye(len(names))[names.index(item.category)] for item in items()])
    assert same_category(vectors) == 1.0


def test_vectors_that_mean_nothing_rarely_do() -> None:
    vectors = np.random.default_rng(0).normal(size=(len(items()), 32))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    assert same_category(vectors) == pytest.approx(1 / 16, abs=0.05)

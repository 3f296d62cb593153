from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.overrides import checked_overrides
from sglang_prefill_ext.wire.arrays import EmbeddingKind

WIDTH = 2
KIND = EmbeddingKind(WIDTH, "float32")
EMBED = np.array([0.5, 1.0], np.float16)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([EMBED, np.ones(3)], r"embeds\[1\]: the shape is \[1, 3\]\..* have 2 numbers"),
        ([np.ones((2, 2))], r"embeds\[0\]: the shape is \[2, 2\]"),
        (np.ones((1, 3)), r"embeds: the shape is \[1, 3\]"),
        (np.ones(2), r"embeds: the shape is \[2\]"),
        ([EMBED, np.array([1, 2])], r"embeds\[1\]: int64 numbers\. Send float16 or float32"),
        ([[1, "a"]], r"embeds\[0\]: <U.* numbers"),
        ("text", "embeds: <U4 numbers"),
        ([EMBED, np.array([np.nan, 1])], r"embeds\[1\]: a number is NaN"),
        (np.array([[0, 1], [1, np.inf]], np.float16), r"embeds\[1\]: a number is NaN"),
        (np.array([[1e300, 1]]), r"embeds\[0\]: a number is NaN or beyond float32.*: inf\. Send"),
    ],
)
def test_other_embeddings_are_refused_by_name(value: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        checked_overrides("embeds", value, KIND)


@pytest.mark.parametrize(
    ("dtype", "value", "said"),
    [
        (
            "float16",
            65520.0,
            "float16, in which the model computes: 65520.0. Send finite numbers, ",
        ),
        ("bfloat16", -3.4028235e38, "finite numbers, below 3.3961775e+38 in size."),
    ],
)
def test_embeddings_beyond_the_models_dtype_are_refused(
    dtype: str, value: float, said: str
) -> None:
    embeds = np.array([[0, 1], [value, 2]], np.float32)
    with pytest.raises(RequestError, match=re.escape(said)) as refused:
        checked_overrides("embeds", embeds, EmbeddingKind(WIDTH, dtype))
    assert str(refused.value).startswith(f"embeds[1]: a number is NaN or beyond {dtype}")
    assert len(checked_overrides("embeds", embeds, KIND)) == 2

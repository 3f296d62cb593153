"""Which answers of both paths count as equal, and what is tried if they are not."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.startup.answer_check import (
    AnswerCheck,
    Attempt,
    Tolerance,
    attempts,
    gaps,
    tolerance_of,
)
from sglang_prefill_ext.startup.known_answers import LABELS

NAN, INF = float("nan"), float("inf")


def check_of(*apart: float) -> AnswerCheck:
    prompts = tuple((number, number + 1) for number in range(len(apart)))
    return AnswerCheck(prompts, apart, apart, Tolerance(1e-4, 1e-4), seconds=0.25)


def differences(stock: Any, packed: Any, *, vectors: bool) -> list[float]:
    """The largest difference for each prompt."""
    largest: list[float] = gaps(stock, packed, vectors=vectors).max(axis=1).tolist()
    return largest


def one_difference(stock: float, packed: float, *, vectors: bool = False) -> float:
    (apart,) = differences(np.array([[stock]]), np.array([[packed]]), vectors=vectors)
    return apart


@pytest.mark.parametrize(
    ("stock", "packed", "apart"),
    [
        (-1.0, -1.5, 0.5),
        (-10.0, -10.5, 0.5),
        (-20.0, -20.5, 0.25),
        (NAN, NAN, 0.0),
        (-INF, -INF, 0.0),
        (NAN, -1.0, INF),
        (-1.0, NAN, INF),
        (-INF, -1.0, INF),
        (-1.0, -INF, INF),
        (-INF, INF, INF),
        (NAN, INF, INF),
    ],
)
def test_differences_of_log_probabilities(stock: float, packed: float, apart: float) -> None:
    assert one_difference(stock, packed) == pytest.approx(apart)


def test_of_a_prompt_the_largest_difference_counts() -> None:
    stock = np.array([[-1.0, -2.0, -3.0], [NAN, -2.0, -3.0]])
    packed = np.array([[-1.0, -2.25, -3.125], [NAN, -2.0, -3.5]])
    assert differences(stock, packed, vectors=False) == [0.25, 0.5]


def test_distances_of_vectors() -> None:
    stock = np.array([[0.6, 0.8], [30.0, 40.0], [0.0, 0.01], [0.6, NAN], [0.6, NAN]])
    packed = np.array([[0.6, 0.9], [30.0, 45.0], [0.0, 0.02], [0.6, NAN], [0.6, 0.8]])
    apart = differences(stock, packed, vectors=True)
    assert apart == pytest.approx([0.1, 0.1, 0.01, 0.0, INF])


numbers = st.floats(width=32) | st.sampled_from([NAN, INF, -INF])


@given(npst.arrays(np.float64, (3, 4), elements=numbers), st.booleans())
def test_equal_answers_are_no_distance_apart(answers: Any, vectors: bool) -> None:
    assert differences(answers, answers.copy(), vectors=vectors) == [0.0] * 3


@given(
    npst.arrays(np.float64, (2, 4), elements=numbers),
    npst.arrays(np.float64, (2, 4), elements=numbers),
    st.booleans(),
)
def test_a_difference_is_never_nan(stock: Any, packed: Any, vectors: bool) -> None:
    for apart, one, other in zip(
        differences(stock, packed, vectors=vectors), stock, packed, strict=True
    ):
        assert apart >= 0
        if (np.isnan(one) != np.isnan(other)).any():
            assert apart == INF


# The check


@pytest.mark.parametrize(
    ("apart", "same"),
    [((0.0, 1e-4), True), ((2e-4, 0.0), False), ((0.0, INF), False), ((), False)],
)
def test_an_answer_check(apart: tuple[float, ...], same: bool) -> None:
    assert check_of(*apart).same is same


@pytest.mark.parametrize(
    ("worst", "shown"),
    [(0.5, "largest difference 5.0e-01"), (INF, "no numbers of both paths")],
)
def test_an_answer_check_names_the_worst_prompt(worst: float, shown: str) -> None:
    text = str(check_of(0.0, worst, 0.25))
    assert text == (
        f"3 prompts, {shown} at prompt 2 (1 tokens of a shared prefix and 2 of its own), "
        "tolerance 0.0001, 0.25 s"
    )


@pytest.mark.parametrize(
    ("apart", "shown"),
    [
        ((0.0, 1e-5), {"verdict": "same", "largest_difference": 1e-5}),
        ((0.5, 0.0), {"verdict": "differ", "largest_difference": 0.5}),
        ((0.0, INF), {"verdict": "differ", "largest_difference": None}),
    ],
)
def test_an_answer_check_is_json(apart: tuple[float, ...], shown: dict[str, Any]) -> None:
    rest = {"prompts": 2, "tolerance": 1e-4, "seconds": 0.25}
    text = json.dumps(check_of(*apart).as_dict(), allow_nan=False)
    assert json.loads(text) == shown | rest


@pytest.mark.parametrize("vectors", [False, True])
def test_tolerances(vectors: bool) -> None:
    exact, *rough = (
        tolerance_of(dtype, quantised=quantised, vectors=vectors)
        for dtype, quantised in [
            ("float32", False),
            ("float32", True),
            ("bfloat16", False),
            ("float16", True),
        ]
    )
    assert exact == (1e-4, 1e-4)
    assert len(set(rough)) == 1
    assert 10 * exact.usual < rough[0].usual < 0.5
    assert rough[0].worst == 4 * rough[0].usual


SEEN_WITH_TF32 = 7e-4
"""Largest distance between two vectors of an encoder in float32 on an H100."""


@pytest.mark.parametrize("vectors", [False, True])
def test_float32_may_be_multiplied_in_tf32(vectors: bool) -> None:
    kind: dict[str, Any] = {"quantised": False, "vectors": vectors}
    exact = tolerance_of("float32", **kind)
    rounded = tolerance_of("float32", **kind, tf32=True)
    half = tolerance_of("bfloat16", **kind)
    assert exact.usual < SEEN_WITH_TF32 < rounded.usual / 5
    assert rounded.worst == rounded.usual < half.usual / 10
    assert tolerance_of("float32", **kind, tf32=True, noise=INF).worst < half.usual
    for dtype, quantised in (("float32", True), ("bfloat16", False)):
        kind["quantised"] = quantised
        assert tolerance_of(dtype, **kind, tf32=True) == half


@pytest.mark.parametrize(
    ("noise", "usual"), [(0.0, 0.25), (0.06, 0.25), (0.1, 0.4), (0.25, 1.0), (9.0, 1.0), (INF, 1.0)]
)
def test_a_noisy_model_is_compared_with_its_own_noise(noise: float, usual: float) -> None:
    tolerance = tolerance_of("bfloat16", quantised=False, vectors=False, noise=noise)
    assert tolerance == (usual, 1.0)


@pytest.mark.parametrize(("depth", "usual"), [(2, 0.25), (16, 0.25), (64, 0.5), (400, 1.0)])
def test_rounding_grows_with_the_layers(depth: int, usual: float) -> None:
    kind: dict[str, Any] = {"quantised": False, "vectors": False, "depth": depth}
    assert tolerance_of("bfloat16", **kind) == (usual, 1.0)
    assert tolerance_of("float32", **kind | {"quantised": True}) == (usual, 1.0)
    assert tolerance_of("float32", **kind) == (1e-4, 1e-4)
    assert tolerance_of("bfloat16", **kind | {"vectors": True}) == (0.1, 0.4)


DEEP = 48
SEEN_IN_DEEP = (0.3565, 0.2527, 0.1924, 0.1876, 0.1034, 0.1002, 0.0254, 0.0)
"""Largest difference of each known prompt, of a sound random model of `DEEP` layers in bfloat16."""


def test_a_deep_model_in_half_precision_is_served() -> None:
    tolerance = tolerance_of("bfloat16", quantised=False, vectors=False, depth=DEEP)
    prompts, medians = ((0, 1),) * PROMPTS, (0.0967,) * PROMPTS
    assert AnswerCheck(prompts, SEEN_IN_DEEP, medians, tolerance, 0.1).same


# Half precision: the last logits of a random model, and what may happen to them

PROMPTS = 8


def half_precision(packed: Any, stock: Any, noise: float = 0.06) -> AnswerCheck:
    apart = gaps(stock, packed, vectors=False)
    return AnswerCheck(
        ((0, 1),) * PROMPTS,
        tuple(apart.max(axis=1).tolist()),
        tuple(np.median(apart, axis=1).tolist()),
        tolerance_of("bfloat16", quantised=False, vectors=False, noise=noise),
        seconds=0.1,
    )


@pytest.fixture
def stock() -> Any:
    return -10 + np.random.default_rng(0).normal(size=(PROMPTS, LABELS))


@pytest.fixture
def rounded(stock: Any) -> Any:
    """The same values with errors of up to 0.06."""
    return stock + np.random.default_rng(1).uniform(-0.06, 0.06, stock.shape)


def test_rounding_is_no_difference(stock: Any, rounded: Any) -> None:
    assert half_precision(rounded, stock).same


def test_a_router_that_chose_otherwise_once_is_no_difference(stock: Any, rounded: Any) -> None:
    one_label = rounded.copy()
    one_label[3, 5] += 0.6
    one_prompt = rounded.copy()
    one_prompt[3] += 0.6 * np.linspace(-1, 1, LABELS) ** 3
    assert half_precision(one_label, stock).same
    assert half_precision(one_prompt, stock).same


def test_other_prompts_must_be_right_all_the_same(stock: Any, rounded: Any) -> None:
    rounded[3, 5] += 0.6
    rounded[4, 5] += 0.6
    assert not half_precision(rounded, stock).same


@pytest.mark.parametrize("noise", [0.0, 0.06, 1.0])
def test_answers_of_another_position_differ(stock: Any, rounded: Any, noise: float) -> None:
    shifted = np.roll(rounded, 1, axis=0)
    assert not half_precision(shifted, stock, noise).same


def test_one_prompt_that_is_wrong_altogether_differs(stock: Any, rounded: Any) -> None:
    rounded[3] = rounded[4]
    assert not half_precision(rounded, stock).same
    rounded[3] = stock[3] + 0.6  # no router moves all labels alike
    assert not half_precision(rounded, stock).same


def test_float32_has_no_outlier(stock: Any) -> None:
    packed = stock.copy()
    packed[3, 5] += 2e-4
    apart = gaps(stock, packed, vectors=False)
    tolerance = tolerance_of("float32", quantised=False, vectors=False, noise=1e-6)
    largest, medians = tuple(apart.max(axis=1)), tuple(np.median(apart, axis=1))
    assert not AnswerCheck(((0, 1),) * PROMPTS, largest, medians, tolerance, 0.1).same


# What is tried before a server declines


def test_graphs_and_then_kernels_are_left_out() -> None:
    assert [each[:2] for each in attempts(AttentionWay.FUSED, 64)] == [
        (AttentionWay.FUSED, 64),
        (AttentionWay.FUSED, 0),
        (AttentionWay.TORCH, 0),
    ]
    first, *others = attempts(AttentionWay.FUSED, 64)
    assert first.suspect == ""
    assert "graphs" in others[0].suspect
    assert "fused" in others[1].suspect


def test_nothing_is_tried_twice() -> None:
    assert attempts(AttentionWay.TORCH, 0) == [Attempt(AttentionWay.TORCH, 0)]
    assert len(attempts(AttentionWay.MERGE, 0)) == 2


def test_an_attempt_is_described_by_what_it_uses() -> None:
    described = [each.described for each in attempts(AttentionWay.MERGE, 256)]
    assert described == [
        "--prefill-only-attention merge with graphs",
        "--prefill-only-attention merge without graphs",
        "--prefill-only-attention torch without graphs",
    ]

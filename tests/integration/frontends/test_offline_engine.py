"""`sglang.Engine`: the packed path without a server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.support.client import LABELS, Json, score_body
from tests.integration.support.own_server import run_script
from tests.integration.support.parity import TOLERANCE
from tests.integration.support.reference import Reference

pytestmark = pytest.mark.timeout(900)

BODIES: list[Json] = [
    score_body(1, 30, [4] * 10),
    score_body(2, 0, [9, 3]),
    score_body(3, 5, [2, 4]) | {"return_token_logprobs": 1},  # as good as True
    {
        "query": "which is a fruit? ",
        "items": ["apple", "chair", "漢字", ""],
        "label_token_ids": LABELS,
        "return_token_logprobs": True,
    },
    {
        "query": [5, 77, 9],
        "items": [[77, 8], [77], [3, 77]],
        "label_token_ids": LABELS,
        "return_token_logprobs": True,
        "embed_override_token_id": 77,
        # The query has another embedding for the last item; bfloat16 holds all of them exactly.
        "stacked_query_item_embed_overrides": [
            [[0.5] * 64, [0.25] * 64],
            [[0.5] * 64, [-0.25] * 64],
            [[-0.125] * 64, [0.25] * 64],
        ],
    },
]


@pytest.fixture(scope="module")
def report(
    model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What `engine_runner` saw."""
    directory = tmp_path_factory.mktemp("engine")
    bodies, out = directory / "bodies.json", directory / "report.json"
    bodies.write_text(json.dumps(BODIES))
    run_script("engine_runner", model_dir("micro"), out, bodies)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.mark.parametrize("call", ["score", "async_score"])
def test_same_numbers_as_hugging_face(
    report: dict[str, Any], model_dir: Callable[[str], Path], call: str
) -> None:
    reference = Reference(model_dir("micro"))
    for body, result in zip(BODIES, report[call], strict=True):
        wanted = reference.logprobs(body, list(range(len(body["items"]))))
        np.testing.assert_allclose(result["token_logprobs"], wanted, rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(result["scores"], np.exp(wanted), rtol=0, atol=TOLERANCE)


@pytest.mark.patch("P03")
def test_every_call_was_packed(report: dict[str, Any]) -> None:
    counters = report["counters"]
    assert counters["requests"] == {"packed": 2 * len(BODIES), "refused": 1}
    assert counters["fallbacks"] == {}
    assert counters["items"] == 2 * sum(len(body["items"]) for body in BODIES)


@pytest.mark.patch("P20")
def test_one_engine_after_the_other_packs(report: dict[str, Any]) -> None:
    another = report["another"]
    assert another["requests"] == {"packed": len(BODIES)}
    for first, last in zip(report["score"], another["score"], strict=True):
        np.testing.assert_allclose(first["scores"], last["scores"], rtol=0, atol=TOLERANCE)


def test_knobs_reach_the_engine(report: dict[str, Any]) -> None:
    assert "items: 51 items exceed the limit of 50" in report["too_many_items"]


def test_what_is_no_token_id_is_refused_by_value(report: dict[str, Any]) -> None:
    assert "contains 'x', which is no token id" in report["no_token_id"]


def test_wrong_knobs_are_refused(report: dict[str, Any]) -> None:
    assert "--prefill-only-max-items must be a whole number" in report["refused_value"]
    assert "got 0" in report["refused_value"]
    assert "without --enable-prefill-only" in report["refused_alone"]


def test_generation_works(report: dict[str, Any]) -> None:
    assert len(report["generated"]) == 8


def test_shutdown_leaves_no_process(report: dict[str, Any]) -> None:
    assert len(report["children"]) >= 2  # scheduler and detokenizer
    assert report["children_after"] == []

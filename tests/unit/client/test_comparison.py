"""`sglang-prefill compare` against a real HTTP server, and differences by brute force."""

from __future__ import annotations

import json
from itertools import permutations

import numpy as np
import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from sglang_prefill_ext.cli import app
from sglang_prefill_ext.client.comparison import Answers, Difference
from sglang_prefill_ext.errors import ConfigError, RequestError
from tests.unit.client.stand_in import Reply, StandIn

PACKED = Reply(200, json.dumps({"path": "packed", "reason": None}))
RECORD = json.dumps({"query": "q", "items": ["a", "b"], "label_token_ids": [4, 5]})


def scored(*first_labels: float) -> Reply:
    rows = [[each, 1 - each] for each in first_labels]
    answer = {"scores": rows, "token_logprobs": None, "usage": {"prompt_tokens": 2}}
    return Reply(200, json.dumps(answer))


def run(stand_in: StandIn, *args: str, stdin: str = RECORD) -> Result:
    # One at a time, so that the stand-in's replies reach the records in order.
    fixed = ("--url", stand_in.url, "--concurrency", "1")
    return CliRunner().invoke(app, ["compare", *fixed, *args], input=stdin)


def test_equal_answers_are_a_success(stand_in: StandIn) -> None:
    stand_in.will(PACKED)
    result = run(stand_in, stdin=f"{RECORD}\n{RECORD}")
    assert result.exit_code == 0, result.output
    assert "Line 1 takes the packed path\n" in result.stdout
    assert "Largest difference of a score: 0.0e+00, in line 1\n" in result.stdout
    assert "Items over 0.02 apart in another order: 0 pairs\n" in result.stdout
    paths = [(seen.path, seen.headers.get("x-prefill-only")) for seen in stand_in.seen]
    score = "/v1/score"
    assert paths == [("/prefill_only/explain", None), *2 * [(score, None)], *2 * [(score, "off")]]


@pytest.mark.parametrize(
    ("stock", "args", "said", "status"),
    [
        (scored(0.51, 0.4), (), "1.0e-02, in line 1", 0),
        (scored(0.51, 0.4), ("--tolerance", "0.001"), "1.0e-02, in line 1", 1),
        (scored(0.4, 0.5), ("--tolerance", "0.05"), "1 pairs", 1),
        (scored(0.4, 0.5), ("--tolerance", "0.2"), "0 pairs", 0),
    ],
)
def test_differences_over_the_tolerance_are_a_failure(
    stand_in: StandIn, stock: Reply, args: tuple[str, ...], said: str, status: int
) -> None:
    stand_in.will(PACKED, scored(0.5, 0.4), stock)
    result = run(stand_in, *args)
    assert said in result.stdout
    assert result.exit_code == status, result.output


def test_of_records_that_differ_stock_is_asked_how_far_it_differs_from_itself(
    stand_in: StandIn,
) -> None:
    stand_in.will(PACKED, *[scored(0.5, 0.4)] * 2)
    stand_in.will(scored(0.5, 0.4), scored(0.53, 0.4), scored(0.505, 0.4))
    result = run(stand_in, stdin=f"{RECORD}\n{RECORD}")
    assert result.exit_code == 1, result.output
    assert result.stdout.endswith(
        "Asked again for 1 of the 1 records that differ too much, one by one, SGLang's own path "
        "differs from itself by 2.5e-02\n"
    )
    assert [seen.headers.get("x-prefill-only") for seen in stand_in.seen][-3:] == ["off"] * 3


def test_the_reason_of_the_stock_path_is_said(stand_in: StandIn) -> None:
    stand_in.will(Reply(200, json.dumps({"path": "stock", "reason": "no_items"})))
    result = run(stand_in)
    assert result.exit_code == 0, result.output
    assert "Line 1 takes the stock path: no_items\n" in result.stdout


def test_what_a_path_refuses_is_reported_and_is_a_failure(stand_in: StandIn) -> None:
    stand_in.will(PACKED, scored(0.5, 0.4), Reply(400, '{"message": "too long"}'))
    stand_in.will(scored(0.5, 0.4), scored(0.5, 0.4))
    result = run(stand_in, stdin=f"{RECORD}\n{RECORD}")
    assert result.exit_code == 1
    assert "line 2: /v1/score with 2 items: HTTP 400: too long" in result.stderr
    assert "0.0e+00, in line 1" in result.stdout


def test_a_first_record_that_is_wrong_fails_alone(stand_in: StandIn) -> None:
    stand_in.will(PACKED)
    result = run(stand_in, stdin=f"{{\n{RECORD}")
    assert "Line 2 takes the packed path\n" in result.stdout
    assert "line 1: not JSON" in result.stderr
    assert result.exit_code == 1


def test_a_server_that_answers_nothing_is_a_failure(stand_in: StandIn) -> None:
    refusal = Reply(400, '{"message": "no"}')
    stand_in.will(PACKED, refusal, refusal)
    result = run(stand_in)
    assert result.exit_code == 1
    assert "line 1: /v1/score with 2 items: HTTP 400: no" in result.stderr


@pytest.mark.parametrize(
    ("stdin", "reply", "error"),
    [("", PACKED, RequestError), ("{", PACKED, RequestError), (RECORD, Reply(404), ConfigError)],
    ids=["no-record", "no-json", "no-extension"],
)
def test_what_cannot_be_compared_ends_the_run(
    stand_in: StandIn, stdin: str, reply: Reply, error: type[Exception]
) -> None:
    stand_in.will(reply)
    assert isinstance(run(stand_in, stdin=stdin).exception, error)


def test_figures_are_items_a_second_and_milliseconds() -> None:
    scores = {1: np.zeros((3, 2)), 4: np.zeros((1, 2))}
    answers = Answers(scores, seconds=[0.01, 0.03], wall_s=0.002)
    assert answers.figures() == ["2,000", "20.0", "29.8"]
    assert Answers(wall_s=1.0).figures() == ["0"]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6))
def test_differences_by_brute_force(tenths: list[tuple[int, int]]) -> None:
    packed, stock = (np.array([[each[at] / 8, 0.5] for each in tenths]) for at in (0, 1))
    found = Difference.between(packed, stock, 0.25)
    pairs = permutations(range(len(tenths)), 2)
    changed = [
        (i, j) for i, j in pairs if stock[i, 0] - stock[j, 0] > 0.25 and packed[i, 0] < packed[j, 0]
    ]
    assert found == Difference(max(abs(a - b) for a, b in tenths) / 8, len(changed))

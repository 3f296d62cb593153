"""`/prefill_only/explain` agrees with the counters, and refuses what `/v1/score` refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_prefill_ext.local_server import LocalServer
from tests.integration.support.client import OPT_OUT, Client, Json, score_body
from tests.integration.support.own_server import run_python

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

EXPLAIN = "/prefill_only/explain"
TOTALS = ("forwards", "tokens_computed", "tokens_saved")


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (score_body(901, 40, [3, 7, 1]), {"rows": 3, "distinct_rows": 3, "prefix_tokens": 40}),
        (score_body(902, 300, [60] * 300), {"rows": 300, "distinct_rows": 300, "forwards": 2}),
        (
            {"query": [*range(40, 70)], "items": [[8], [9], [8], [8]], "label_token_ids": [5]},
            {"rows": 4, "distinct_rows": 2, "prompt_tokens": 4 * 31, "prefix_tokens": 30},
        ),
    ],
    ids=["one-forward", "two-forwards", "equal-rows"],
)
def test_it_says_what_the_counters_say(client: Client, body: Json, wanted: Json) -> None:
    with client.counting() as moved:
        reply = client.post(EXPLAIN, body)
    assert reply.status_code == 200, reply.text
    facts = reply.json()
    assert (facts["path"], facts["reason"]) == ("packed", None)
    assert {name: facts[name] for name in wanted} == wanted
    assert {name: facts[name] for name in TOTALS} == {
        name: moved[f"frontend.{name}"] for name in TOTALS
    }
    assert moved["frontend.requests.packed"] == 1
    assert facts["execution_class"] == "one_shot"
    assert facts["prefix_tokens_cached"] == moved["scheduler.tokens_cached"] == 0
    assert facts["queue_ms"] >= 0
    assert facts["compute_ms"] > 0


def test_it_says_how_much_of_the_prefix_was_cached(client: Client) -> None:
    body = score_body(905, 48, [3, 7, 1])
    facts = [client.post(EXPLAIN, body).json() for _ in range(3)]
    assert [each["prefix_tokens_cached"] for each in facts] == [0, 0, 48]
    assert [each["tokens_computed"] for each in facts] == [59, 59, 11]


@pytest.mark.parametrize(
    ("fields", "headers", "reason"),
    [({}, OPT_OUT, "opted_out"), ({"items": []}, {}, "no_items")],
)
def test_it_says_why_a_request_took_the_stock_path(
    client: Client, fields: Json, headers: dict[str, str], reason: str
) -> None:
    body = score_body(904, 10, [2]) | fields
    with client.counting() as moved:
        reply = client.http.post(EXPLAIN, json=body, headers=headers)
    assert reply.json() == {"path": "stock", "reason": reason}
    assert moved[f"frontend.fallbacks.{reason}"] == 1


@pytest.mark.parametrize(
    "fields",
    [{"items": None}, {"items": [[-1]]}, {"label_token_ids": [5, 5]}, {"temperature": "hot"}],
)
def test_bad_bodies_are_refused_as_by_the_scoring_route(client: Client, fields: Json) -> None:
    body = score_body(905, 10, [2]) | fields
    explained, scored = (client.post(path, body) for path in (EXPLAIN, "/v1/score"))
    assert explained.status_code == scored.status_code == 400
    # FastAPI's refusals contain the place of the route in the source.
    answers = [reply.json() for reply in (explained, scored)]
    assert answers[0].keys() == answers[1].keys()
    messages = [answer.pop("message").partition("\n  File ")[0] for answer in answers]
    assert messages[0] == messages[1]
    assert answers[0] == answers[1]


def command(tmp_path: Path, url: str, body: Any) -> Any:
    file = tmp_path / "request.json"
    file.write_text(json.dumps(body))
    main = "from sglang_prefill_ext.cli import main; main()"
    return run_python("-c", main, "explain", file, "--url", url)


def test_the_command_prints_a_table(server: LocalServer, tmp_path: Path) -> None:
    run = command(tmp_path, server.base_url, score_body(903, 40, [3, 7, 1]))
    assert run.returncode == 0, run.stderr
    rows = [line.split() for line in run.stdout.splitlines() if line.strip()]
    assert ["path", "packed"] in rows
    assert ["tokens", "computed", "51"] in rows
    assert ["tokens", "saved", "80"] in rows


def test_the_command_repeats_the_refusal(server: LocalServer, tmp_path: Path) -> None:
    run = command(tmp_path, server.base_url, score_body(906, 40, [3]) | {"label_token_ids": [5, 5]})
    assert run.returncode == 1
    assert "HTTP 400: label_token_ids must not" in run.stderr

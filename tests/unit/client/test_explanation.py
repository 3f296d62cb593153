"""Explanations from a real HTTP server."""

from __future__ import annotations

import json

import pytest

from sglang_prefill_ext.client.explanation import explain
from sglang_prefill_ext.errors import (
    ConfigError,
    PrefillExtError,
    RequestError,
    ServerRefusedError,
    ServerUnavailableError,
    UnexpectedAnswerError,
)
from tests.unit.client.stand_in import Reply, StandIn

BODY = b'{"query": "q", "items": ["a"]}'
FACTS = {"path": "packed", "reason": None, "rows": 1}


@pytest.mark.parametrize("slash", ["", "/"])
def test_the_body_is_sent_and_the_facts_come_back(stand_in: StandIn, slash: str) -> None:
    stand_in.will(Reply(200, json.dumps(FACTS)))
    assert explain(stand_in.url + slash, BODY, api_key="secret") == FACTS
    (seen,) = stand_in.seen
    assert (seen.path, seen.body) == ("/prefill_only/explain", json.loads(BODY))
    assert seen.headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        (Reply(404), ConfigError, "Start the server with --enable-prefill-only"),
        (Reply(400, '{"message": "too long"}'), ServerRefusedError, "HTTP 400: too long"),
        (Reply(502, "<html>"), ServerRefusedError, "HTTP 502: <html>"),
        (Reply(502, "[" * 100_000), ServerRefusedError, r"HTTP 502: \[\["),
        (Reply(200, "hello"), UnexpectedAnswerError, "answered 'hello'"),
        (Reply(200, "[]"), UnexpectedAnswerError, "not an object"),
        (Reply(0), ServerUnavailableError, "no connection with http"),
    ],
)
def test_what_the_server_does_wrong_is_said(
    stand_in: StandIn, reply: Reply, error: type[PrefillExtError], words: str
) -> None:
    stand_in.will(reply)
    with pytest.raises(error, match=words):
        explain(stand_in.url, BODY)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_what_is_no_request_is_not_sent(stand_in: StandIn, body: bytes) -> None:
    with pytest.raises(RequestError, match="Give a body of /v1/score"):
        explain(stand_in.url, body)
    assert not stand_in.seen


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("localhost:30000", "is no address"),
        ("grpc://localhost:1", "Give the server's http address"),
    ],
)
def test_the_address_is_one_of_http(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        explain(url, BODY)

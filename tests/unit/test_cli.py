from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from sglang_prefill_ext import cli
from sglang_prefill_ext.errors import ConfigError, RequestError

URL = "http://127.0.0.1:9"
FACTS = {"path": "packed", "reason": None, "rows": 3, "queue_ms": 1.25}


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> list[httpx.Response | Exception]:
    """What the server answers: the one entry of this list."""
    answers: list[httpx.Response | Exception] = []

    def post(url: str, **_request: Any) -> httpx.Response:
        assert url == f"{URL}/prefill_only/explain"
        (answer,) = answers
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(httpx, "post", post)
    return answers


def test_an_explanation_becomes_a_table(
    answer: list[httpx.Response | Exception], tmp_path: Path
) -> None:
    answer.append(httpx.Response(200, json=FACTS))
    file = tmp_path / "request.json"
    file.write_text(json.dumps({"query": "q", "items": ["a"]}))
    run = CliRunner().invoke(cli.app, ["explain", str(file), "--url", URL])
    assert run.exit_code == 0, run.output
    rows = [line.split() for line in run.output.splitlines() if line.strip()]
    assert rows == [["path", "packed"], ["rows", "3"], ["queue", "ms", "1.2"]]


@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        (httpx.ConnectError("refused"), ConfigError, "does not answer .*Start a server there"),
        (httpx.Response(404), ConfigError, "without --enable-prefill-only; add that flag"),
        (httpx.Response(400, json={"message": "too long"}), RequestError, "^HTTP 400: too long$"),
    ],
)
def test_what_goes_wrong_is_said_with_the_remedy(
    answer: list[httpx.Response | Exception],
    reply: httpx.Response | Exception,
    error: type[Exception],
    words: str,
) -> None:
    answer.append(reply)
    with pytest.raises(error, match=words):
        cli.ask_for_explanation(URL, "{}")

"""The commands as a shell runs them, against a real HTTP server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from sglang_prefill_ext.cli import app
from sglang_prefill_ext.errors import ConfigError, RequestError, ServerUnavailableError
from tests.unit.client.stand_in import Reply, StandIn, answer, value_of

EMBED = {"encoding_format": "base64"}
QUERY = {"query": "q", "items": ["a", "c", "b"]}


def run(stand_in: StandIn, *args: str, stdin: str | bytes = "", **env: str) -> Result:
    return CliRunner().invoke(app, [*args, "--url", stand_in.url], input=stdin, env=env)


def answers(result: Result) -> list[Any]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def lines(*records: Any) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def test_score_adds_scores_to_what_was_there(stand_in: StandIn, tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    record = {"id": 7, **QUERY, "label_token_ids": [4, 5]}
    file.write_text(lines(record, {"query": [1], "items": [[2]], "label_token_ids": "6,7"}))
    result = run(stand_in, "score", str(file))
    assert result.exit_code == 0, result.output
    first, second = answers(result)
    assert first == record | {"scores": [[value_of(i), 1 - value_of(i)] for i in "acb"]}
    assert second["scores"] == [[value_of([2]), 1 - value_of([2])]]
    bodies = sorted((seen.body["label_token_ids"], seen.body["query"]) for seen in stand_in.seen)
    assert bodies == [([4, 5], "q"), ([6, 7], [1])]


def test_rank_sorts_and_keeps_the_top(stand_in: StandIn, tmp_path: Path) -> None:
    file, output = tmp_path / "in.csv", tmp_path / "out.jsonl"
    file.write_text('\ufeffid,query,items\n1,q,"[""a"", ""c"", ""b""]"\n2,q,lone\n')
    args = ("--label-token-ids", "1,2", "--top", "2", "--output", str(output))
    result = run(stand_in, "rank", str(file), *args)
    assert (result.exit_code, result.stdout) == (0, "")
    first, second = (json.loads(line) for line in output.read_text().splitlines())
    assert first == {
        "id": "1",
        "query": "q",
        "items": [
            {"index": 1, "score": value_of("c"), "item": "c"},
            {"index": 2, "score": value_of("b"), "item": "b"},
        ],
    }
    assert [item["item"] for item in second["items"]] == ["lone"]


def test_embed_and_classify_read_stdin(stand_in: StandIn) -> None:
    result = run(stand_in, "embed", stdin=lines({"text": "a"}, {"text": [5]}))
    assert [each["embedding"][1] for each in answers(result)] == [2.0, 2.0]
    result = run(stand_in, "classify", "-", "--field", "title", stdin=lines({"title": "a"}))
    assert answers(result)[0]["logits"][1:] == [1.0, 2.0]
    assert [seen.path for seen in stand_in.seen[-2:]] == ["/v1/embeddings", "/classify"]


@pytest.mark.parametrize("command", ["embed", "classify"])
def test_an_adapter_is_sent_by_its_name(stand_in: StandIn, command: str) -> None:
    record = lines({"text": "a"})
    assert run(stand_in, command, "--adapter", "red", stdin=record).exit_code == 0
    assert run(stand_in, command, stdin=record).exit_code == 0
    assert [seen.body.get("lora_path") for seen in stand_in.seen] == ["red", None]


def test_bad_records_are_named_and_cost_only_themselves(stand_in: StandIn) -> None:
    good = json.dumps(QUERY | {"label_token_ids": [1]})
    no_number = json.dumps(QUERY | {"label_token_ids": "yes"})
    stdin = "\n".join([good, "{", "", '{"query": "q"}', no_number, good])
    result = run(stand_in, "score", stdin=stdin)
    assert result.exit_code == 1
    assert len(answers(result)) == 2
    reported = [line for line in result.stderr.splitlines() if line.startswith("line ")]
    assert [line.split(": ")[:2] for line in reported] == [
        ["line 2", "not JSON"],
        ["line 4", "items"],
        ["line 5", "label_token_ids"],
    ]


@pytest.mark.parametrize("command", ["score", "rank"])
def test_classes_are_asked_for_without_labels(stand_in: StandIn, command: str) -> None:
    result = run(stand_in, command, stdin=lines(QUERY))
    assert result.exit_code == 0, result.output
    assert [seen.body["label_token_ids"] for seen in stand_in.seen] == [None]


@pytest.mark.parametrize("labels", [[4], "4", [[4], [5], [4]], None])
def test_items_with_one_label_or_class_are_told_apart(stand_in: StandIn, labels: Any) -> None:
    if labels is None:
        scores = [[value_of(item)] for item in "acb"]
        answer = {"scores": scores, "usage": {"prompt_tokens": 1}}
        stand_in.replies.append(Reply(200, json.dumps(answer)))
    result = run(stand_in, "rank", stdin=lines(QUERY | {"label_token_ids": labels}))
    (answered,) = answers(result)
    assert [each["score"] for each in answered["items"]] == [value_of(i) for i in "cba"]
    assert [seen.body["apply_softmax"] for seen in stand_in.seen] == [False]


def test_classes_have_probabilities(stand_in: StandIn) -> None:
    (answered,) = answers(run(stand_in, "score", stdin=lines(QUERY)))
    for (first, second), item in zip(answered["scores"], "acb", strict=True):
        assert first + second == pytest.approx(1)
        assert np.log(first / second) == pytest.approx(2 * value_of(item) - 1)


def test_a_missing_text_may_be_in_another_field(stand_in: StandIn) -> None:
    result = run(stand_in, "embed", stdin=lines({"body": "a"}))
    assert "line 1: text: missing; the record has body. Name another with --field." in result.stderr


def test_what_the_server_refuses_is_reported_with_its_line(stand_in: StandIn) -> None:
    stand_in.will(Reply(400, '{"message": "[no] such token"}'))
    stdin = lines({"text": "a"}, {"text": "b"})
    result = run(stand_in, "embed", "--concurrency", "1", stdin=stdin)
    assert result.exit_code == 1
    assert "line 1: /v1/embeddings with 1 item: HTTP 400: [no] such token\n" in result.stderr
    assert [each["text"] for each in answers(result)] == ["b"]


def test_key_and_timeout_reach_the_server(stand_in: StandIn) -> None:
    key = {"SGLANG_PREFILL_API_KEY": "secret"}
    result = run(stand_in, "embed", "--timeout", "9", stdin=lines({"text": "a"}), **key)
    assert result.exit_code == 0, result.output
    headers = stand_in.seen[0].headers
    assert headers["authorization"] == "Bearer secret"
    assert 0 < int(headers["x-prefill-only-timeout-ms"]) <= 9_000


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["embed", "--url", "nowhere"], ConfigError),
        (["embed", "--timeout", "-1"], RequestError),
        (["embed", "--url", "http://127.0.0.1:9"], ServerUnavailableError),
    ],
)
def test_what_no_record_can_change_ends_the_run(args: list[str], error: type[Exception]) -> None:
    result = CliRunner().invoke(app, args, input=lines({"text": "a"}))
    assert isinstance(result.exception, error)
    assert result.stdout == ""


@pytest.mark.parametrize("command", ["score", "rank", "compare"])
@pytest.mark.parametrize("labels", ["x", "1,x", "1,,2", ""])
def test_wrong_labels_are_wrong_usage_even_if_no_record_needs_them(
    stand_in: StandIn, command: str, labels: str
) -> None:
    record = lines(QUERY | {"label_token_ids": [1]})
    result = run(stand_in, command, "--label-token-ids", labels, stdin=record)
    assert result.exit_code == 2
    assert f"label_token_ids: {labels!r} is not a list" in result.stderr
    assert (result.stdout, stand_in.seen) == ("", [])


@pytest.mark.parametrize(("closed", "answered"), [("<&-", 0), (">&-", 0), ("2>&-", 1)])
def test_streams_may_be_closed(stand_in: StandIn, closed: str, answered: int) -> None:
    """A closed one is as good as /dev/null."""
    main = "from sglang_prefill_ext.cli import main; main()"
    shell = f'"$0" -c "$1" embed - --url "$2" {closed}'
    command = ["sh", "-c", shell, sys.executable, main, stand_in.url]
    ended = subprocess.run(
        command, input=lines({"text": "a"}), capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert len(ended.stdout.splitlines()) == answered
    assert len(stand_in.seen) == (closed != "<&-")


def test_what_is_read_is_not_written_over(stand_in: StandIn, tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text(lines({"text": "a"}))
    result = run(stand_in, "embed", str(file), "--output", str(file))
    assert isinstance(result.exception, ConfigError)
    assert file.read_text() == lines({"text": "a"})
    assert not stand_in.seen


def test_an_interrupt_waits_for_no_server(stand_in: StandIn, tmp_path: Path) -> None:
    """It also loses no earlier answer."""
    file, output = tmp_path / "texts.jsonl", tmp_path / "out.jsonl"
    file.write_text(lines(*({"text": "a"} for _ in range(5))))
    first = Reply(200, json.dumps(answer("/v1/embeddings", EMBED | {"input": ["a"]})))
    stand_in.will(first, Reply(200, after_s=60))
    flags = ["--url", stand_in.url, "--concurrency", "1", "--output", str(output)]
    # Tests that run in the background ignore SIGINT; their child processes would inherit that.
    heeds = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    main = heeds + "from sglang_prefill_ext.cli import main; main()"
    command = [sys.executable, "-c", main, "embed", str(file), *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        try:
            while running.poll() is None and not (output.exists() and output.read_text()):
                time.sleep(0.01)
            running.send_signal(signal.SIGINT)
            _, said = running.communicate(timeout=30)
        finally:
            running.kill()
    assert (running.returncode, "Traceback" in said) == (130, False)
    assert len(output.read_text().splitlines()) == 1

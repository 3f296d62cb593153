from __future__ import annotations

from typing import Any

import pytest

from bench import server
from bench.http_client import LoadError
from bench.server import MeasuredServer, wait_until_settled
from sglang_prefill_ext.local_server import LocalServer

UNDECIDED = {"frontend": {"tokenizer": {"ready": False}}}
DECIDED = {"frontend": {"tokenizer": {"ready": True}}}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ports that were asked for their status."""
    monkeypatch.setattr(server, "_POLL_S", 0.0)
    return []


def answer_with(
    monkeypatch: pytest.MonkeyPatch, asked: list[int], pages: list[dict[str, Any] | None]
) -> None:
    def status_page(port: int) -> dict[str, Any] | None:
        asked.append(port)
        return pages[min(len(asked), len(pages)) - 1]

    monkeypatch.setattr(server, "status_page", status_page)


def test_it_waits_for_the_decision(monkeypatch: pytest.MonkeyPatch, asked: list[int]) -> None:
    answer_with(monkeypatch, asked, [UNDECIDED, UNDECIDED, DECIDED])
    wait_until_settled(7)
    assert asked == [7, 7, 7]


def test_stock_has_nothing_to_decide(monkeypatch: pytest.MonkeyPatch, asked: list[int]) -> None:
    answer_with(monkeypatch, asked, [None])
    wait_until_settled(7)
    assert asked == [7]


def test_it_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch, asked: list[int]) -> None:
    answer_with(monkeypatch, asked, [UNDECIDED])
    with pytest.raises(LoadError, match="port 7: no decision on the tokenizer within 0 s"):
        wait_until_settled(7, timeout_s=0.0)


def test_a_measured_server_is_ready_once_it_has_decided(
    monkeypatch: pytest.MonkeyPatch, asked: list[int]
) -> None:
    answer_with(monkeypatch, asked, [UNDECIDED, DECIDED])
    monkeypatch.setattr(LocalServer, "wait_ready", lambda *_args: 3.5)
    running = MeasuredServer("model")
    assert running.wait_ready() == 3.5
    assert asked == [running.port] * 2

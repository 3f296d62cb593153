"""What SGLang's scheduler counts as reasoning in the one token of an answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers.schedule_batch import Req

from sglang_prefill_ext.border.tokenizer_manager import token_output
from sglang_prefill_ext.border.tokenizer_manager.token_output import ReasoningCount, reasoning_count

BEGIN, END = 90, 91
KNOWN = {"<think>": [BEGIN], "</think>": [END], "<mm:think>": [BEGIN], "</mm:think>": [END, 5]}


class Tokenizer:
    def __init__(self, known: dict[str, list[int]] | None = None) -> None:
        self._known = KNOWN if known is None else known

    def encode(self, text: str, **_how: Any) -> list[int]:
        return self._known.get(text, [])


def counting(
    monkeypatch: pytest.MonkeyPatch, parser: str | None, tokenizer: Any, *, strict: bool = False
) -> ReasoningCount:
    serving = SimpleNamespace(reasoning_parser=parser, enable_strict_thinking=strict)
    monkeypatch.setattr(token_output, "get_serving", lambda: serving)
    return reasoning_count(tokenizer)


def as_the_scheduler_counts(parser: str, token: int, *, required: bool) -> int:
    req = SimpleNamespace(
        _is_reasoning_over=False,
        _think_end_matcher=None,
        _think_end_match_len=0,
        _think_start_match_len=0,
        reasoning_tokens=0,
    )
    req.update_reasoning_tokens = lambda *args: Req.update_reasoning_tokens(req, *args)
    of_minimax = parser == "minimax-m3"
    end = KNOWN["</mm:think>" if of_minimax else "</think>"]
    if required:
        req.update_reasoning_tokens(token, end)
    elif of_minimax:
        Req.update_self_opened_reasoning_tokens(req, token, [BEGIN], end)
    return int(req.reasoning_tokens)


@pytest.mark.parametrize("parser", ["qwen3", "minimax-m3"])
@pytest.mark.parametrize("token", [5, BEGIN, END])
@pytest.mark.parametrize("required", [False, True])
def test_a_token_counts_as_in_sglangs_scheduler(
    monkeypatch: pytest.MonkeyPatch, parser: str, token: int, required: bool
) -> None:
    count = counting(monkeypatch, parser, Tokenizer())
    wanted = as_the_scheduler_counts(parser, token, required=required)
    assert count.of(token, required=required) == wanted


@pytest.mark.parametrize(
    ("parser", "tokenizer"),
    [(None, Tokenizer()), ("qwen3", None), ("qwen3", Tokenizer({"<think>": [BEGIN]}))],
    ids=["no parser", "no tokenizer", "no end"],
)
def test_nothing_counts_where_reasoning_is_not_known(
    monkeypatch: pytest.MonkeyPatch, parser: str | None, tokenizer: Any
) -> None:
    count = counting(monkeypatch, parser, tokenizer, strict=True)
    assert count == ReasoningCount()
    assert count.of(BEGIN, required=True) == 0


def test_an_opening_of_several_tokens_is_not_complete_after_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = KNOWN | {"<mm:think>": [BEGIN, 5]}
    count = counting(monkeypatch, "minimax-m3", Tokenizer(known))
    assert count.of(BEGIN, required=False) == 0
    assert count.of(None, required=True) == 1


def test_tokens_are_filtered_only_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [counting(monkeypatch, "qwen3", Tokenizer(), strict=each) for each in (False, True)]
    assert [each.filters for each in found] == [False, True]

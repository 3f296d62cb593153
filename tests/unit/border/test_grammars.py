"""Which tokens an answer may begin with, by SGLang's own backends on a trained tokenizer."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.runtime_context import get_context

from sglang_prefill_ext.border import grammars
from sglang_prefill_ext.border.grammars import Grammars, grammar_of
from sglang_prefill_ext.errors import DeadlineExceededError, RequestAbortedError
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.token import first_tokens
from sglang_prefill_ext.frontend.token.first_tokens import FirstTokens
from sglang_prefill_ext.modelmaker.tokenizer import train_tokenizer
from tests.unit.frontend.links import StubRequest
from tests.unit.frontend.token.token_requests import tokenized

TOKENS, PADDED = 900, 950  # no multiple of 32, the bits of a mask's number
TAG = json.dumps(
    {
        "type": "structural_tag",
        "format": {"type": "tag", "begin": "yes", "content": {"type": "any_text"}, "end": "no"},
    }
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(TOKENS, 4096)


@pytest.fixture(params=["xgrammar", "llguidance"])
def known(request: pytest.FixtureRequest, tokenizer: Any) -> Iterator[Grammars]:
    with get_context().override_server_args(grammar_backend=request.param, reasoning_parser=None):
        yield Grammars(manager_of(tokenizer), ())


def manager_of(tokenizer: Any) -> Any:
    model = SimpleNamespace(vocab_size=PADDED, hf_eos_token_id=None)
    if tokenizer is not None:
        model.hf_eos_token_id = {tokenizer.eos_token_id}
    return SimpleNamespace(server_args=None, tokenizer=tokenizer, model_config=model)


async def first(known: Grammars, deadline_ms: float | None = None, **grammar: str) -> FirstTokens:
    sampling = tokenized([1], sampling=grammar).sampling_params
    found = await known.first_tokens(sampling, [1], None, deadline_ms)
    assert found is not None
    return found


def beginnings(tokenizer: Any, *answers: str) -> set[int]:
    """Tokens with which one of the answers can begin."""
    texts = {token: tokenizer.decode([token]) for token in range(TOKENS)}
    return {
        token
        for token, text in texts.items()
        if text and any(answer.startswith(text) for answer in answers)
    }


@pytest.mark.parametrize(
    ("grammar", "answers"),
    [
        ({"regex": "(yes|no)"}, ["yes", "no"]),
        ({"regex": "[A-C]"}, ["A", "B", "C"]),
        ({"ebnf": 'root ::= "yes" | "no"'}, ["yes", "no"]),
        ({"json_schema": '{"enum": ["yes", "no"]}'}, ['"yes"', '"no"']),
    ],
    ids=str,
)
async def test_answers_begin_with_what_the_grammar_allows(
    known: Grammars, tokenizer: Any, grammar: dict[str, str], answers: list[str]
) -> None:
    found = await first(known, **grammar)
    assert found.allowed
    assert set(found.listed.tolist()) == beginnings(tokenizer, *answers)


async def test_an_answer_may_be_empty(known: Grammars, tokenizer: Any) -> None:
    found = await first(known, regex="a?")
    assert set(found.listed.tolist()) == {tokenizer.eos_token_id, *beginnings(tokenizer, "a")}


async def test_of_many_tokens_those_that_are_forbidden_are_listed(
    known: Grammars, tokenizer: Any
) -> None:
    found = await first(known, regex="[^a].*")
    assert not found.allowed
    assert beginnings(tokenizer, "a") <= set(found.listed.tolist())
    assert set(range(TOKENS, PADDED)) <= set(found.listed.tolist())
    assert not beginnings(tokenizer, "b") & set(found.listed.tolist())


async def test_a_structural_tag_begins_with_its_tag(tokenizer: Any) -> None:
    with get_context().override_server_args(grammar_backend="xgrammar", reasoning_parser=None):
        found = await first(Grammars(manager_of(tokenizer), ()), structural_tag=TAG)
    assert set(found.listed.tolist()) == beginnings(tokenizer, "yes")


@pytest.mark.parametrize("grammar", [{"regex": "("}, {"json_schema": "{"}, {"ebnf": "\x00"}])
async def test_a_wrong_grammar_is_left_to_sglang(known: Grammars, grammar: dict[str, str]) -> None:
    for _ in range(2):
        with pytest.raises(StockPathTaken, match="grammar"):
            await first(known, **grammar)
    assert (await first(known, regex="a")).allowed


async def test_a_grammar_that_allows_too_many_tokens_is_left_to_sglang(
    known: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_tokens, "MOST_LISTED", 2)
    assert len((await first(known, regex="[AB]")).listed) == 2
    with pytest.raises(StockPathTaken, match="grammar"):
        await first(known, regex="[ABC]")


async def test_a_long_grammar_is_left_to_sglang(
    known: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammars, "_LONGEST", 3)
    assert (await first(known, regex="a|b")).allowed
    with pytest.raises(StockPathTaken, match="grammar"):
        await first(known, regex="a|bc")


async def test_recent_grammars_are_compiled_once(
    known: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Any] = []
    read = Grammars._read
    monkeypatch.setattr(
        Grammars, "_read", lambda own, backend, key: compiled.append(key) or read(own, backend, key)
    )
    monkeypatch.setattr(grammars, "_MOST_KNOWN", 2)
    for regex in ("a", "a", "b", "a", "b", "c", "c", "a"):
        await first(known, regex=regex)
    assert [text for _, text in compiled] == ["a", "b", "c", "a"]


async def test_calls_with_one_grammar_compile_it_once(
    known: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    learnt: list[Any] = []
    learn = known._learn
    monkeypatch.setattr(known, "_learn", lambda *asked: learnt.append(asked) or learn(*asked))
    found = await asyncio.gather(*[first(known, regex="[A-C]") for _ in range(20)])
    assert len(learnt) == 1
    assert all(each is found[0] for each in found)


def hold(known: Grammars, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let the grammar "slow" wait for the event while it is read."""
    goes_on, read = threading.Event(), known._read
    monkeypatch.setattr(
        known,
        "_read",
        lambda backend, key: (key[1] == "slow" and goes_on.wait(30), read(backend, key))[1],
    )
    return goes_on


@asynccontextmanager
async def while_one_is_read(
    known: Grammars, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[None]:
    """Run the body of the `with` statement while a call waits for the grammar "slow"."""
    goes_on = hold(known, monkeypatch)
    slow = asyncio.create_task(first(known, regex="slow"))
    await asyncio.sleep(0.01)
    yield
    assert not slow.done()
    goes_on.set()
    await slow


async def test_a_slow_grammar_keeps_no_other_waiting(
    known: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    await first(known, regex="a")
    async with while_one_is_read(known, monkeypatch):
        for regex in ("a", "b"):  # one that is known, and one that is not
            assert (await first(known, regex=regex)).allowed


async def test_a_deadline_may_pass_while_a_grammar_is_read_for_another_call(
    known: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with while_one_is_read(known, monkeypatch):
        for _ in range(2):
            with pytest.raises(DeadlineExceededError):
                await first(known, deadline_ms=1e3 * (time.time() + 0.01), regex="slow")


async def test_a_client_may_leave_while_a_grammar_is_read_for_another_call(
    known: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = tokenized([1], sampling={"regex": "slow"}).sampling_params
    async with while_one_is_read(known, monkeypatch):
        with pytest.raises(RequestAbortedError):
            await known.first_tokens(sampling, [1], StubRequest(patience=0), None)


async def test_a_grammar_that_nobody_waits_for_is_known_afterwards(
    known: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = hold(known, monkeypatch)
    with pytest.raises(DeadlineExceededError):
        await first(known, deadline_ms=1e3 * (time.time() + 0.01), regex="slow")
    (learning,) = known._learning.values()
    goes_on.set()
    await learning
    assert (await first(known, regex="slow")).allowed
    assert not known._learning


async def test_a_slow_grammar_is_left_to_sglang(
    known: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    await first(known, regex="a")
    backend = known._backend
    assert backend is not None
    monkeypatch.setattr(grammars, "_MOST_COMPILE_S", 0.01)
    monkeypatch.setattr(backend, "_init_value_dispatch", lambda *_key: time.sleep(0.2))
    with pytest.raises(StockPathTaken, match="grammar"):
        await first(known, regex="b")


async def test_a_deadline_may_pass_meanwhile(
    known: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "_learn", lambda *_asked: time.sleep(0.2))
    with pytest.raises(DeadlineExceededError):
        await first(known, deadline_ms=1e3 * (time.time() + 0.01), regex="a")


async def test_a_tokenizer_that_sglang_cannot_read_has_no_grammars() -> None:
    with get_context().override_server_args(
        grammar_backend="xgrammar", enable_strict_thinking=False, reasoning_parser=None
    ):
        known = Grammars(manager_of(SimpleNamespace(eos_token_id=1)), ())
        with pytest.raises(StockPathTaken, match="grammar"):
            await first(known, regex="a")


@pytest.mark.parametrize("backend", ["none", "outlines"])
async def test_without_bit_masks_nothing_is_known(tokenizer: Any, backend: str) -> None:
    with get_context().override_server_args(grammar_backend=backend):
        known = Grammars(manager_of(tokenizer), ())
        with pytest.raises(StockPathTaken, match="grammar"):
            await first(known, regex="a")


async def test_without_a_tokenizer_nothing_is_known() -> None:
    with get_context().override_server_args(grammar_backend="xgrammar"):
        known = Grammars(manager_of(None), ())
        with pytest.raises(StockPathTaken, match="grammar"):
            await first(known, regex="a")


async def test_where_none_is_generated_sglang_shows_the_log_probs_of_one(known: Grammars) -> None:
    sampling = tokenized([1], sampling={"regex": "a", "max_new_tokens": 0}).sampling_params
    with pytest.raises(StockPathTaken, match="grammar"):
        await known.first_tokens(sampling, [1], None, None)


async def test_without_a_grammar_all_tokens_are_allowed(known: Grammars) -> None:
    assert await known.first_tokens(tokenized([1]).sampling_params, [1], None, None) is None


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({}, None),
        ({"json_schema": "{}"}, ("json", "{}")),
        ({"regex": "a"}, ("regex", "a")),
        ({"ebnf": "a"}, ("ebnf", "a")),
        ({"ebnf": "a", "ebnf_full_assistant": True}, ("full_assistant_ebnf", "a")),
        ({"structural_tag": "a"}, ("structural_tag", "a")),
        ({"structural_tag": "a", "ebnf_full_assistant": True}, ("structural_tag", "a")),
    ],
    ids=str,
)
def test_grammars_have_sglangs_names(
    sampling: dict[str, Any], expected: tuple[str, str] | None
) -> None:
    assert grammar_of(tokenized([1], sampling=sampling).sampling_params) == expected

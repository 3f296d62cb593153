"""How requests end that hooks took over from SGLang, on stand-ins for its manager."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sglang.srt.managers.io_struct import BatchTokenIDOutput

from sglang_prefill_ext.border.tokenizer_manager import token_hooks
from sglang_prefill_ext.border.tokenizer_manager.call_context import CallContext
from sglang_prefill_ext.border.tokenizer_manager.token_output import ReasoningCount
from sglang_prefill_ext.errors import PackedForwardError, RequestAbortedError
from sglang_prefill_ext.frontend.batch_exchange import ReadOut
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.frontend.token.token_call import token_call_of
from sglang_prefill_ext.wire.stock_reason import StockReason
from tests.unit.frontend.links import StubLink, path_of
from tests.unit.frontend.token.token_requests import NoGrammars, tokenized

TOKEN = 7
SHOWN = {
    **dict.fromkeys(("stop_strs", "stop_token_ids", "skip_special_tokens", "no_stop_trim"), None),
    **dict.fromkeys(("ignore_eos", "spaces_between_special_tokens"), False),
}
"""Sampling parameters that affect only the text of an answer."""


class Tokenizer:
    eos_token_id = 2

    def decode(self, ids: list[int], **_how: Any) -> str:
        return "x" * len(ids)


class Manager:
    """Keeps what it is told to answer and to send on; fails at the first answers if asked to."""

    def __init__(self, failures: int = 0) -> None:
        self.rid_to_state: dict[str, Any] = {"r": SimpleNamespace(abort_sent=False)}
        self.model_config = SimpleNamespace(vocab_size=100, hf_eos_token_id=None)
        self.tokenizer: Tokenizer | None = Tokenizer()
        self.answers: list[Any] = []
        self.sent: list[Any] = []
        self.failures = failures

    def config_value(self, _name: str) -> str:
        return "default"

    async def _handle_batch_output(self, output: Any) -> None:
        if self.failures:
            self.failures -= 1
            raise KeyError("of ours")
        self.answers.append(output)

    async def _send_one_request(self, request: Any) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("socket")
        self.sent.append(request)


class Frontend:
    """Answers with a token or with the given error, once `gate` is set."""

    def __init__(self, error: Exception | None = None) -> None:
        self.path = path_of(StubLink())
        self.gate = asyncio.Event()
        self.gate.set()
        self._error = error

    async def read(self, _call: Any, _options: Any, request: Any) -> ReadOut:
        while not self.gate.is_set():
            await asyncio.sleep(0)
            if await request.is_disconnected():
                raise RequestAbortedError("gone")
        if self._error is not None:
            raise self._error
        return ReadOut(np.array([[-0.5, TOKEN]], dtype=np.float32), 0)


def begun(manager: Manager, frontend: Frontend, **fields: Any) -> asyncio.Task[None]:
    request = tokenized([5, 6], sampling=SHOWN, **fields)
    state = manager.rid_to_state["r"]
    reasoning = ReasoningCount(end=(91,))
    server = SimpleNamespace(manager=manager, reasoning=reasoning, grammars=NoGrammars())
    work = token_hooks._Work(server, frontend, CallContext(None), request, state)  # type: ignore[arg-type]
    return asyncio.create_task(work.serve(token_call_of(request, set()), RequestOptions()))


def reasons(manager: Manager) -> list[Any]:
    return [each.finished_reasons[0] for each in manager.answers]


@pytest.mark.parametrize("meanwhile", [{}, {"r": object()}], ids=["left", "another of its name"])
@pytest.mark.parametrize(
    "error", [None, PackedForwardError("x"), StockPathTaken(StockReason.ROW_OVER_BUDGET)]
)
async def test_who_has_left_is_answered_nothing(
    meanwhile: dict[str, object], error: Exception | None
) -> None:
    manager, frontend = Manager(), Frontend(error)
    frontend.gate.clear()
    task = begun(manager, frontend)
    await asyncio.sleep(0)
    manager.rid_to_state = meanwhile
    frontend.gate.set()
    await task
    assert manager.answers == manager.sent == []


async def test_what_sglang_aborts_is_not_waited_for() -> None:
    """The client has left; its state exists until the request is answered."""
    manager, frontend = Manager(), Frontend()
    frontend.gate.clear()
    task = begun(manager, frontend)
    await asyncio.sleep(0)
    manager.rid_to_state["r"].abort_sent = True
    await task
    (reason,) = reasons(manager)
    assert (reason["type"], reason["status_code"]) == ("abort", 503)
    assert frontend.path.metrics.as_dict()["requests"] == {"aborted": 1}


@pytest.mark.parametrize("error", [ValueError("of ours"), KeyError("of ours")])
async def test_an_error_of_ours_ends_the_call(error: Exception) -> None:
    manager, frontend = Manager(), Frontend(error)
    await begun(manager, frontend)
    (reason,) = reasons(manager)
    assert (reason["type"], reason["status_code"]) == ("abort", 500)
    assert "of ours" in reason["message"]
    assert frontend.path.metrics.as_dict()["requests"] == {"failed": 1}


async def test_an_answer_that_cannot_be_given_ends_the_call() -> None:
    manager = Manager(failures=1)
    await begun(manager, Frontend())
    assert [reason["status_code"] for reason in reasons(manager)] == [500]


async def test_what_sglang_cannot_be_sent_ends_the_call() -> None:
    manager, frontend = Manager(failures=1), Frontend(StockPathTaken(StockReason.ROW_OVER_BUDGET))
    await begun(manager, frontend)
    assert [reason["status_code"] for reason in reasons(manager)] == [500]
    again = Manager()
    await begun(again, frontend)
    assert (len(again.sent), again.answers) == (1, [])


@pytest.mark.parametrize("error", [None, ValueError("of ours")])
async def test_without_a_tokenizer_the_answer_is_the_schedulers_without_text(
    error: Exception | None,
) -> None:
    manager = Manager()
    manager.tokenizer, manager.model_config.hf_eos_token_id = None, {TOKEN}
    await begun(manager, Frontend(error))
    (answer,) = manager.answers
    assert isinstance(answer, BatchTokenIDOutput)
    assert [list(ids) for ids in answer.output_ids] == [[TOKEN] if error is None else []]
    (reason,) = reasons(manager)
    if error is None:
        assert reason == {"type": "stop", "matched": TOKEN}
    else:
        assert reason["type"] == "abort"


@pytest.mark.parametrize("required", [False, True])
async def test_a_token_of_reasoning_is_counted(required: bool) -> None:
    manager = Manager()
    await begun(manager, Frontend(), require_reasoning=required)
    (answer,) = manager.answers
    assert answer.reasoning_tokens == [int(required)]


async def test_a_model_that_makes_vectors_sends_all_to_sglang() -> None:
    path, sent = path_of(StubLink()), []

    async def send(_manager: Any, request: Any) -> None:
        sent.append(request)

    manager = SimpleNamespace(_prefill_only=SimpleNamespace(path=path, tokens=None))
    request = tokenized([5, 6])
    await token_hooks.send_one(send, manager, request)
    assert sent == [request]
    assert path.metrics.as_dict()["fallbacks"] == {}

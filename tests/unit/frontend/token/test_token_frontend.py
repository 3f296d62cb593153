from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from sglang_prefill_ext.config import PrefixCaching
from sglang_prefill_ext.errors import (
    PackedForwardError,
    RequestAbortedError,
    RequestError,
    ServerBusyError,
)
from sglang_prefill_ext.frontend import worker
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.frontend.token import token_frontend
from sglang_prefill_ext.frontend.token.token_batch import pack_calls
from sglang_prefill_ext.frontend.token.token_call import TokenCall
from sglang_prefill_ext.frontend.token.token_frontend import TokenFrontend
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows
from sglang_prefill_ext.wire.prefix_policy import PrefixPolicy
from sglang_prefill_ext.wire.stock_reason import StockReason
from tests.unit.frontend.links import PathSetup, stub_answer
from tests.unit.frontend.token.token_requests import log_probs, tokenized, values_of
from tests.unit.waiting import until


class Setup(PathSetup):
    """A front end whose scheduler answers at once."""

    def __init__(self, answer: Callable[[PackedRows], PackedResult], **settings: Any) -> None:
        super().__init__(**({"max_row_tokens": 100} | settings))
        self.link.admitted = 1  # by SGLang itself
        self.frontend = TokenFrontend(self.path)
        self.answer(answer)

    async def read(self, *calls: TokenCall, options: RequestOptions | None = None) -> list[Any]:
        asked = (self.frontend.read(each, options or RequestOptions()) for each in calls)
        return await asyncio.gather(*asked, return_exceptions=True)


def right(rows: PackedRows) -> PackedResult:
    return stub_answer(values=values_of(rows), tokens_computed=len(rows.tokens))


def call(*prompt: int) -> TokenCall:
    return TokenCall(int_array(prompt), None, 0, None, generates=True)


async def test_concurrent_calls_share_a_packed_request() -> None:
    setup = Setup(right)
    prompts = [(1, 2), (3,), (1, 4, 5)]
    results = await setup.read(*(call(*prompt) for prompt in prompts))
    tokens = [int(each.table[-1, 1]) for each in results]
    assert tokens == [int(log_probs(list(prompt)).argmax()) for prompt in prompts]
    assert len(setup.link.sent) == 1
    assert setup.metrics.as_dict()["requests"] == {"packed": 3}
    assert setup.metrics.as_dict()["items"] == 3


async def test_calls_with_different_adapters_are_packed_apart() -> None:
    setup = Setup(right)
    adapters = ["", "a", "a", "b"]
    calls = [replace(call(1, number), adapter=each) for number, each in enumerate(adapters)]
    for number, read in enumerate(await setup.read(*calls)):
        assert int(read.table[-1, 1]) == int(log_probs([1, number]).argmax())
    sent = {rows.adapter: rows.num_rows for _, rows in setup.link.sent}
    assert sent == {"": 1, "a": 2, "b": 1}
    assert len(setup.link.sent) == len(sent)


async def test_of_calls_whose_forward_fails_only_the_failing_one_is_lost() -> None:
    setup = Setup(lambda rows: stub_answer("failed") if 9 in rows.tokens else right(rows))
    good, bad, other = await setup.read(call(1), call(9), call(2))
    assert isinstance(bad, PackedForwardError)
    assert good.table.shape == other.table.shape == (1, 2)


async def test_a_call_that_nobody_waits_for_is_aborted() -> None:
    class Left:
        async def is_disconnected(self) -> bool:
            return True

    setup = Setup(right)
    setup.link.on_send = lambda rid, rows: None
    with pytest.raises(RequestAbortedError):
        await setup.frontend.read(call(1), RequestOptions(), Left())
    await until(lambda: setup.link.aborted == [rid for rid, _ in setup.link.sent] != [])


async def test_a_busy_server_refuses_all_calls_of_a_batch() -> None:
    setup = Setup(lambda rows: stub_answer("rejected"))
    assert [type(each) for each in await setup.read(call(1), call(2))] == [ServerBusyError] * 2
    assert len(setup.link.sent) == 1


async def test_cached_tokens_are_those_of_the_prefix() -> None:
    setup = Setup(lambda rows: stub_answer(values=values_of(rows), tokens_cached=64))
    alone, *_ = await setup.read(call(1, 2))
    assert alone.cached_tokens == 0
    alike = await setup.read(call(*[1] * 80, 2), call(*[1] * 80, 3))
    assert [each.cached_tokens for each in alike] == [64, 64]


@pytest.mark.parametrize("no_cache", [False, True])
async def test_what_came_before_is_asked_for_apart_if_the_engine_keeps_it(no_cache: bool) -> None:
    def answer(rows: PackedRows) -> PackedResult:
        return msgspec.structs.replace(right(rows), no_cache=no_cache)

    setup = Setup(answer, prefixes=PrefixPolicy(PrefixCaching.REPEATED, 1), max_row_tokens=300)
    passages = [[1] * 20 + [number] * 200 for number in (2, 3)]
    for question in (4, 5, 6):
        await setup.read(*(call(*passage, question) for passage in passages))
    sent = [(rows.num_rows, rows.prefix_len) for _, rows in setup.link.sent]
    kept = [options.keep_prefix for options in setup.link.options]
    if no_cache:
        assert (sent, kept) == ([(2, 20)] * 3, [False] * 3)
    else:
        assert (sent, kept) == ([(2, 20)] + [(1, 220)] * 4, [False] + [True] * 4)


def test_what_is_not_eligible_takes_the_stock_path() -> None:
    setup = Setup(right)
    assert setup.frontend.call_of(tokenized([1, 2]), ()).ids.tolist() == [1, 2]
    with pytest.raises(StockPathTaken, match="row_over_budget"):
        setup.frontend.call_of(tokenized([1] * 101), ())
    setup.exchange.declined_reason = StockReason.MODEL_ARCHITECTURE
    with pytest.raises(StockPathTaken, match="model_architecture"):
        setup.frontend.call_of(tokenized([1]), ())


def test_where_tokens_are_marked_only_log_probs_are_read() -> None:
    setup = Setup(right, watermarks=True)
    reading = tokenized([1, 2], sampling={"max_new_tokens": 0}, return_logprob=True)
    assert setup.frontend.call_of(reading, ()).ids.tolist() == [1, 2]
    with pytest.raises(StockPathTaken, match="watermark"):
        setup.frontend.call_of(tokenized([1, 2]), ())


def test_log_probs_that_take_too_much_memory_are_refused_before_they_are_packed() -> None:
    setup = Setup(right, max_queued_mib=1)
    wants = {"return_logprob": True, "logprob_start_len": 0}
    for fields in ({"top_logprobs_num": 162}, {"token_ids_logprob": list(range(324))}):
        assert setup.frontend.call_of(tokenized([1] * 100, **(wants | fields)), ()).num_values
    for fields in ({"top_logprobs_num": 170}, {"token_ids_logprob": list(range(330))}):
        with pytest.raises(RequestError, match=r"100 tokens and \d+ numbers .* limit of 1 MiB\."):
            setup.frontend.call_of(tokenized([1] * 100, **(wants | fields)), ())


async def test_prompts_of_one_call_are_counted_together() -> None:
    setup = Setup(right, max_queued_mib=1)
    many = [replace(call(*[1] * 100), start=0, num_top=100)] * 2
    assert len(await setup.frontend.read_all(many[:1], RequestOptions(), None)) == 1
    with pytest.raises(RequestError, match="top_logprobs_num: 0 tokens and 40600 numbers"):
        await setup.frontend.read_all(many, RequestOptions(), None)


async def test_calls_with_much_to_read_share_no_packed_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = Setup(right)
    small, large = (replace(call(1, 2, 3), start=0, num_top=num) for num in (3, 4))
    monkeypatch.setattr(token_frontend, "_MOST_SHARED", small.num_values)
    for each in (small, large):
        found = await setup.read(each, each)
        assert [len(read_out.table) for read_out in found] == [3, 3]
    assert [rows.num_rows for _, rows in setup.link.sent] == [2, 1, 1]


async def test_large_batches_are_packed_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def noting_pack(*args: Any) -> Any:
        threads.append(threading.current_thread())
        return pack_calls(*args)

    monkeypatch.setattr(token_frontend, "pack_calls", noting_pack)
    asked = replace(call(1, 2, 3), start=0)
    size = 3 + asked.num_values
    for most in (size - 1, size):
        monkeypatch.setattr(worker, "_INLINE_TOKENS", most)
        assert len(await Setup(right).read(asked)) == 1
    assert [thread is threading.current_thread() for thread in threads] == [False, True]

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from sglang_prefill_ext.errors import EngineUnavailableError, RequestAbortedError
from sglang_prefill_ext.frontend.exchange import PackedExchange, StockPathTaken, unique_name
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows
from sglang_prefill_ext.wire.read import Labels
from tests.unit.frontend.links import StubLink, StubRequest, answer_at_once, stub_answer

ROWS = PackedRows(int_array([1, 2, 3, 4, 5]), 2, int_array([1, 2]), Labels(int_array([7])))


def exchange_of(link: StubLink, **about: bool) -> PackedExchange:
    link.admitted = 1
    return PackedExchange(link, max_row_tokens=100, **about)


def ask(exchange: PackedExchange, request: object = None) -> asyncio.Task[PackedResult]:
    return asyncio.create_task(exchange.ask(ROWS, RequestOptions(), request))


async def test_tokens_are_counted_while_requests_are_under_way() -> None:
    link = StubLink()
    exchange = exchange_of(link)
    first, second = ask(exchange), ask(exchange)
    await asyncio.sleep(0)
    assert (exchange.in_flight, exchange.tokens) == (2, 2 * len(ROWS.tokens))
    exchange.deliver(link.sent[0][0], stub_answer())
    assert (await first).status == "ok"
    assert (exchange.in_flight, exchange.tokens) == (1, len(ROWS.tokens))
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert (exchange.in_flight, exchange.tokens) == (0, 0)
    assert link.aborted == [link.sent[1][0]], "only that without an answer"


async def test_a_request_that_cannot_be_sent_leaves_nothing() -> None:
    link = StubLink()
    exchange = exchange_of(link)

    def fail(rid: str, rows: PackedRows) -> None:
        raise ConnectionError

    link.on_send = fail
    with pytest.raises(ConnectionError):
        await ask(exchange)
    assert (exchange.in_flight, exchange.tokens) == (0, 0)


async def test_the_request_of_a_client_that_leaves_is_aborted() -> None:
    link = StubLink()
    exchange = exchange_of(link)
    with pytest.raises(RequestAbortedError):
        await ask(exchange, StubRequest(patience=1))
    assert link.aborted == [link.sent[0][0]]


async def test_a_closed_exchange_ends_every_call_and_sends_nothing_to_the_engine() -> None:
    link = StubLink()
    exchange = exchange_of(link)
    waiting, cancelled = ask(exchange), ask(exchange)
    await asyncio.sleep(0)
    cancelled.cancel()
    exchange.close("the engine has ended")
    for task, error in ((waiting, EngineUnavailableError), (cancelled, asyncio.CancelledError)):
        with pytest.raises(error):
            await task
    with pytest.raises(EngineUnavailableError, match="the engine has ended"):
        await ask(exchange)
    assert (len(link.sent), link.aborted, exchange.tokens) == (2, [], 0)


@pytest.mark.parametrize("one_engine", [True, False])
async def test_what_the_only_engine_cannot_do_is_not_tried_again(one_engine: bool) -> None:
    link = StubLink()
    exchange = exchange_of(link, one_engine=one_engine)
    for longest in (30, 50):
        end = stub_answer("unfit", longest_row=longest)
        answer_at_once(link, exchange, lambda _, end=end: end)
        with pytest.raises(StockPathTaken, match="row_over_budget"):
            await ask(exchange)
    exchange.require_fitting(30 if one_engine else 100)
    with pytest.raises(StockPathTaken, match="row_over_budget"):
        exchange.require_fitting(31 if one_engine else 101)
    answer_at_once(link, exchange, lambda _: stub_answer("declined", "pooling"))
    with pytest.raises(StockPathTaken, match="pooling"):
        await ask(exchange)
    assert exchange.declined_reason == ("pooling" if one_engine else None)


_PRINT = (
    "from sglang_prefill_ext.frontend.exchange import unique_name as n; print(n('a-'), n('a-'))"
)


def test_no_name_is_given_twice_in_any_process() -> None:
    found = [unique_name("a-"), unique_name("a-")]
    for _ in range(2):
        found += subprocess.check_output([sys.executable, "-c", _PRINT], text=True).split()
    assert len(set(found)) == len(found) == 6
    assert all(name.startswith("a-") for name in found)


def test_no_name_begins_with_another() -> None:
    found = [unique_name("a-") for _ in range(120)]
    assert [name for name in found if any(o.startswith(name) for o in found if o != name)] == []

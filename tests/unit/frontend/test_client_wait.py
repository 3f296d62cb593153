from __future__ import annotations

import asyncio

import pytest

from sglang_prefill_ext.errors import RequestAbortedError
from sglang_prefill_ext.frontend.client_wait import (
    outcome_while_connected,
    until_departure,
    while_connected,
)
from tests.unit.frontend.links import StubRequest
from tests.unit.waiting import until


@pytest.mark.parametrize("request_", [None, object(), StubRequest(patience=1_000)])
async def test_an_outcome_is_waited_for(request_: object) -> None:
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.01, future.set_result, 5)
    assert await outcome_while_connected(future, request_) == 5


async def test_a_client_that_leaves_ends_the_wait() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    with pytest.raises(RequestAbortedError, match="disconnected"):
        await outcome_while_connected(future, StubRequest(patience=3))


async def test_a_client_that_leaves_ends_what_is_inside() -> None:
    async def wait() -> None:
        async with while_connected(StubRequest(patience=3)):
            await asyncio.Event().wait()

    with pytest.raises(RequestAbortedError, match="disconnected"):
        await wait()
    current = asyncio.current_task()
    assert current is not None
    assert not current.cancelling()


@pytest.mark.parametrize("request_", [None, object(), StubRequest(patience=1_000)])
async def test_what_is_inside_may_fail_in_its_own_way(request_: object) -> None:
    async def fail() -> None:
        async with while_connected(request_):
            await asyncio.sleep(0.01)
            raise TimeoutError("its own")

    tasks_before = asyncio.all_tasks()
    with pytest.raises(TimeoutError, match="its own"):
        await fail()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == tasks_before


class Looked(StubRequest):
    """A client that stays; the outcome exists after the client was checked this many times."""

    def __init__(self, future: asyncio.Future[int], times: int) -> None:
        super().__init__(patience=1_000)
        self._future = future
        self._last = self.patience - times

    async def is_disconnected(self) -> bool:
        left = await super().is_disconnected()
        if self.patience == self._last:
            self._future.set_result(5)
        return left


async def test_nobody_looks_any_more_once_the_wait_is_over() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    tasks_before = asyncio.all_tasks()
    request = Looked(future, times=3)
    assert await outcome_while_connected(future, request) == 5
    left = request.patience
    await asyncio.sleep(0.01)
    assert (request.patience, asyncio.all_tasks()) == (left, tasks_before)


async def test_an_error_is_the_outcome() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    future.set_exception(LookupError("x"))
    with pytest.raises(LookupError, match="x"):
        await outcome_while_connected(future, None)


async def test_a_client_that_cannot_be_watched_is_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Unwatchable:
        async def is_disconnected(self) -> bool:
            raise RuntimeError("no such connection")

    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(outcome_while_connected(future, Unwatchable()))
    await until(lambda: "no such connection" in caplog.text)
    future.set_result(5)
    assert await waiting == 5


class Receiver:
    """A request whose client may leave."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def receive(self) -> dict[str, str]:
        await self.left.wait()
        return {"type": "http.disconnect"}


async def test_a_departure_ends_what_is_inside_and_what_follows_goes_on() -> None:
    request, steps = Receiver(), []
    asyncio.get_running_loop().call_later(0.01, request.left.set)
    async with until_departure(request):
        try:
            await asyncio.Event().wait()
        finally:
            steps.append("inside")
    steps.append("after")
    assert steps == ["inside", "after"]


@pytest.mark.parametrize("leaves", [False, True])
async def test_what_is_inside_may_end_or_fail_before_a_departure(leaves: bool) -> None:
    request, tasks_before = Receiver(), asyncio.all_tasks()

    async def fail() -> None:
        async with until_departure(request):
            if leaves:
                request.left.set()
            raise TimeoutError("its own")

    async with until_departure(request):
        await asyncio.sleep(0.01)
    with pytest.raises(TimeoutError, match="its own"):
        await fail()
    await until(lambda: asyncio.all_tasks() == tasks_before)

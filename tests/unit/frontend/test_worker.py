from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from sglang_prefill_ext.errors import DeadlineExceededError, RequestAbortedError, ServerBusyError
from sglang_prefill_ext.frontend.worker import Worker
from tests.unit.frontend.links import StubRequest


@asynccontextmanager
async def held(worker: Worker) -> AsyncIterator[None]:
    """Keep the thread busy while the body runs."""
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        go_on.wait()

    task = asyncio.create_task(worker.run(hold))
    await asyncio.to_thread(begun.wait)
    yield
    go_on.set()
    await task


async def test_what_the_thread_returns_or_raises_is_the_outcome() -> None:
    worker = Worker("test")
    assert await worker.run(divmod, 7, 2) == (3, 1)
    assert await worker.run(threading.current_thread) is not threading.current_thread()
    with pytest.raises(ZeroDivisionError):
        await worker.run(divmod, 7, 0)


async def test_beyond_the_limit_calls_are_rejected_until_there_is_room() -> None:
    worker = Worker("test", most_waiting=3)
    await worker.run(time.sleep, 0.01)
    async with held(worker):
        waiting = [asyncio.create_task(worker.run(abs, -n)) for n in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(ServerBusyError, match=r"3 calls wait .* the limit is 3") as caught:
            await worker.run(abs, 1)
        assert caught.value.retry_after_s > 0
    assert await asyncio.gather(*waiting) == [0, 1]
    assert await worker.run(abs, -5) == 5


def cancel(task: asyncio.Task[int]) -> None:
    task.cancel()


@pytest.mark.parametrize(
    ("caller", "end", "error"),
    [
        ({"request": StubRequest(patience=2)}, None, RequestAbortedError),
        ({"deadline_ms": 0.0}, None, DeadlineExceededError),
        ({}, cancel, asyncio.CancelledError),
    ],
    ids=["left", "late", "cancelled"],
)
async def test_a_call_that_nobody_waits_for_is_passed_over(
    caller: dict[str, object],
    end: Callable[[asyncio.Task[int]], None] | None,
    error: type[BaseException],
) -> None:
    worker, calls = Worker("test", most_waiting=2), list[int]()
    async with held(worker):
        task = asyncio.create_task(worker.run(calls.append, 1, **caller))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        if end is not None:
            end(task)  # type: ignore[arg-type]
        with pytest.raises(error):
            await task
        with pytest.raises(ServerBusyError):  # it still has its place in the queue
            await worker.run(calls.append, 2)
    await worker.run(calls.append, 3)
    assert calls == [3]


async def test_a_caller_that_is_patient_gets_its_outcome() -> None:
    worker = Worker("test")
    in_an_hour = (time.time() + 3600) * 1e3
    patient = StubRequest(patience=10**6)
    assert await worker.run(abs, -1, request=patient, deadline_ms=in_an_hour) == 1


def test_a_function_may_end_after_the_loop_of_its_caller(caplog: pytest.LogCaptureFixture) -> None:
    worker, go_on = Worker("test"), threading.Event()

    async def leave() -> None:
        task = asyncio.create_task(worker.run(go_on.wait))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(leave())
    go_on.set()
    worker._pool.shutdown()
    assert not caplog.records

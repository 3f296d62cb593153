"""Several requests of one stream at a time, answered in their order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")


async def in_order(
    requests: AsyncIterator[RequestT],
    serve: Callable[[RequestT], Coroutine[Any, Any, AnswerT]],
    *,
    at_a_time: int,
) -> AsyncGenerator[AnswerT, None]:
    """Serve requests as they come, at most so many at a time, and yield the answers in order.

    An answer does not wait for the next request. The first error ends everything.
    """
    tasks: asyncio.Queue[asyncio.Task[AnswerT] | None] = asyncio.Queue()
    started: set[asyncio.Task[AnswerT]] = set()
    places = asyncio.Semaphore(at_a_time)

    async def read() -> None:
        async for request in requests:
            await places.acquire()
            task = asyncio.ensure_future(serve(request))
            started.add(task)
            tasks.put_nowait(task)

    reader = asyncio.ensure_future(read())
    reader.add_done_callback(lambda _: tasks.put_nowait(None))
    try:
        while (task := await tasks.get()) is not None:
            yield await task
            started.discard(task)
            places.release()
        await reader
    finally:
        for each in (reader, *started):
            each.cancel()
        await asyncio.gather(reader, *started, return_exceptions=True)

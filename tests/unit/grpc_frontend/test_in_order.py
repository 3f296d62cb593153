from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing

import pytest

from sglang_prefill_ext.grpc_frontend.service import in_order


async def stream(numbers: Iterable[int]) -> AsyncIterator[int]:
    for number in numbers:
        yield number


async def test_answers_come_in_the_order_of_the_requests() -> None:
    waits = [0.03, 0.0, 0.02, 0.01, 0.0]

    async def serve(number: int) -> int:
        await asyncio.sleep(waits[number])
        return 10 * number

    found = [answer async for answer in in_order(stream(range(5)), serve, at_a_time=3)]
    assert found == [0, 10, 20, 30, 40]


async def test_no_more_are_served_at_a_time_than_allowed() -> None:
    busy, most = 0, 0

    async def serve(number: int) -> int:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await asyncio.sleep(0.001)
        busy -= 1
        return number

    found = [answer async for answer in in_order(stream(range(20)), serve, at_a_time=2)]
    assert len(found) == 20
    assert most == 2


async def test_an_answer_that_was_taken_is_not_kept() -> None:
    class Answer:
        pass

    made: list[weakref.ref[Answer]] = []

    async def serve(_number: int) -> Answer:
        answer = Answer()
        made.append(weakref.ref(answer))
        return answer

    kept = []
    async for _ in in_order(stream(range(20)), serve, at_a_time=2):
        kept.append(sum(answer() is not None for answer in made))
    assert len(made) == 20
    assert max(kept) <= 2 + 1  # and the one that is looked at


async def test_an_answer_does_not_wait_for_the_next_request() -> None:
    answered = asyncio.Event()

    async def requests() -> AsyncIterator[int]:
        yield 1
        await answered.wait()
        yield 2

    async def serve(number: int) -> int:
        return number

    found = []
    async with asyncio.timeout(60):
        async for answer in in_order(requests(), serve, at_a_time=2):
            found.append(answer)
            answered.set()
    assert found == [1, 2]


@pytest.mark.parametrize("where", ["requests", "serve"])
async def test_an_error_ends_the_stream_after_the_answers_before_it(where: str) -> None:
    ended: list[int] = []

    async def requests() -> AsyncIterator[int]:
        for number in range(9):
            if (where, number) == ("requests", 2):
                raise ValueError("broken")
            yield number

    async def serve(number: int) -> int:
        if (where, number) == ("serve", 2):
            raise ValueError("broken")
        try:
            if number > 2:
                await asyncio.Event().wait()
        finally:
            ended.append(number)
        return number

    found: list[int] = []

    async def collect() -> None:
        async for answer in in_order(requests(), serve, at_a_time=2):
            found.append(answer)

    with pytest.raises(ValueError, match="broken"):
        await collect()
    assert found == [0, 1]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_caller_that_leaves_ends_what_is_being_served() -> None:
    ended: list[int] = []

    async def serve(number: int) -> int:
        try:
            if number:
                await asyncio.Event().wait()
        finally:
            ended.append(number)
        return number

    async with aclosing(in_order(stream(range(9)), serve, at_a_time=2)) as answers:
        assert await anext(answers) == 0
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert 0 in ended

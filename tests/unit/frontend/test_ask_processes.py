from __future__ import annotations

import asyncio

import pytest

from sglang_prefill_ext.frontend.ask_processes import Questions, Turns


async def test_answers_are_collected_until_all_are_there() -> None:
    calls: Questions[int] = Questions()

    def send(rid: str) -> None:
        calls.deliver(rid, 1)
        calls.deliver("another question", 7)
        calls.deliver(rid, 2)

    assert await calls.ask(send, 2, 60) == [1, 2]


async def test_two_questions_do_not_mix() -> None:
    calls: Questions[str] = Questions()
    asked: list[str] = []
    both = asyncio.gather(calls.ask(asked.append, 1, 60), calls.ask(asked.append, 1, 60))
    await asyncio.sleep(0)
    for rid in reversed(asked):
        calls.deliver(rid, rid)
    assert await both == [[rid] for rid in asked]


async def test_the_silent_are_left_out_and_what_comes_late_is_dropped() -> None:
    calls: Questions[int] = Questions()
    asked: list[str] = []

    def send(rid: str) -> None:
        asked.append(rid)
        calls.deliver(rid, 1)

    assert await calls.ask(send, 2, 0.01) == [1]
    calls.deliver(asked[0], 2)
    assert await calls.ask(lambda _: None, 1, 0.01) == []


async def test_nobody_to_ask() -> None:
    calls: Questions[int] = Questions()
    assert await calls.ask(lambda _: None, 0, 60) == []


async def test_who_asks_meanwhile_shares_the_next_answer() -> None:
    turns, asked = answered_later()
    first = asyncio.create_task(turns.answer())
    await settled()
    later = [asyncio.create_task(turns.answer()) for _ in range(100)]
    await settled()
    assert len(asked) == 1, "one at a time"
    later.pop().cancel()
    asked[0].set_result("old")
    assert await first == "old"
    await settled()
    assert len(asked) == 2
    asked[1].set_result("new")
    assert await asyncio.gather(*later) == ["new"] * 99
    last = asyncio.create_task(turns.answer())
    await settled()
    asked[2].set_exception(OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        await last
    again = asyncio.create_task(turns.answer())
    await settled()
    asked[3].set_result("back")
    assert await again == "back"


async def test_where_the_next_answer_takes_too_long_the_last_one_serves() -> None:
    turns, asked = answered_later()
    assert await turns.answer_within(0.01, 60) == (None, True)
    asked[0].set_result("late")
    await settled()
    assert await turns.answer_within(0.01, 60) == ("late", True)
    assert await turns.answer_within(0.01, 0) == (None, True)
    asked[1].set_result("later")
    await settled()
    in_time = asyncio.create_task(turns.answer_within(60, 0))
    await settled()
    asked[2].set_result("for nobody")
    await settled()
    asked[3].set_result("in time")
    assert await in_time == ("in time", False)


def answered_later() -> tuple[Turns[str], list[asyncio.Future[str]]]:
    """Turns, and for each question that was asked the future with its answer."""
    asked: list[asyncio.Future[str]] = []

    async def ask() -> str:
        asked.append(asyncio.get_running_loop().create_future())
        return await asked[-1]

    return Turns(ask), asked


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_an_answer_that_is_not_whole_does_not_stand_for_later_ones() -> None:
    answers = iter([[1, 2], [1], [], [2, 1]])

    async def ask() -> list[int]:
        return next(answers)

    turns: Turns[list[int]] = Turns(ask, is_whole=lambda answer: len(answer) == 2)
    found = [await turns.answer_within(60, 60) for _ in range(4)]
    assert found == [([1, 2], False), ([1, 2], True), ([1, 2], True), ([2, 1], False)]

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from sglang_prefill_ext.attach.mailbox import Mailbox

Parts = list[bytes]


@contextmanager
def mailbox(kind: zmq.SocketType, take: Callable[[Parts], None], path: Path) -> Iterator[Mailbox]:
    """One end at a socket file: DEALER connects, PAIR and ROUTER bind."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    socket = context.socket(kind)
    socket.setsockopt(zmq.SocketOption.SNDHWM, 0)
    socket.setsockopt(zmq.SocketOption.IMMEDIATE, 1)
    act = socket.connect if kind is zmq.SocketType.DEALER else socket.bind
    act(f"ipc://{path}")
    box = Mailbox(socket, take)
    try:
        yield box
    finally:
        box.close(linger_ms=0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "box.sock"


class Inbox:
    """Keeps what came, and waits for more."""

    def __init__(self) -> None:
        self.messages: list[Parts] = []
        self._came = asyncio.Event()

    def __call__(self, parts: Parts) -> None:
        self.messages.append(parts)
        self._came.set()

    async def wait_for(self, count: int) -> list[Parts]:
        async with asyncio.timeout(10):
            while len(self.messages) < count:
                self._came.clear()
                await self._came.wait()
        return self.messages


@pytest.mark.parametrize("count", [1, 64, 1_000])
async def test_every_message_comes_once_and_in_order(path: Path, count: int) -> None:
    inbox = Inbox()
    with (
        mailbox(zmq.SocketType.ROUTER, inbox, path),
        mailbox(zmq.SocketType.DEALER, lambda _: None, path) as sender,
    ):
        for number in range(count):
            sender.send(b"%d" % number, b"x")
        came = await inbox.wait_for(count)
    assert [parts[1:] for parts in came] == [[b"%d" % number, b"x"] for number in range(count)]


async def test_both_ends_talk_at_once(path: Path) -> None:
    """Every use of a socket takes back the sign that something has come: none may be missed."""
    turns, seen = 300, Inbox()

    def reply(parts: Parts) -> None:
        for _ in range(3):
            router.send(*parts)

    def next_turn(parts: Parts) -> None:
        seen(parts)
        if len(seen.messages) % 3 == 0 and len(seen.messages) < 3 * turns:
            dealer.send(b"ping")

    with (
        mailbox(zmq.SocketType.ROUTER, reply, path) as router,
        mailbox(zmq.SocketType.DEALER, next_turn, path) as dealer,
    ):
        dealer.send(b"ping")
        await seen.wait_for(3 * turns)


async def test_what_is_sent_to_nobody_waits_for_somebody(path: Path) -> None:
    inbox = Inbox()
    with mailbox(zmq.SocketType.DEALER, lambda _: None, path) as sender:
        sender.send(b"early")
        await asyncio.sleep(0.05)
        with mailbox(zmq.SocketType.ROUTER, inbox, path):
            sender.send(b"late")
            came = await inbox.wait_for(2)
    assert [parts[1:] for parts in came] == [[b"early"], [b"late"]]


async def test_a_message_that_cannot_be_taken_keeps_none_from_coming(path: Path) -> None:
    failures: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: failures.append(context["exception"]))
    inbox = Inbox()

    def take(parts: Parts) -> None:
        inbox(parts)
        if parts[1] == b"bad":
            raise ValueError("bad")

    with (
        mailbox(zmq.SocketType.ROUTER, take, path),
        mailbox(zmq.SocketType.DEALER, lambda _: None, path) as sender,
    ):
        for body in (b"bad", b"good", b"bad", b"good"):
            sender.send(body)
        await inbox.wait_for(4)
    assert [str(failure) for failure in failures] == ["bad", "bad"]


async def test_a_closed_one_takes_nothing_more(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = Inbox()

    def take(parts: Parts) -> None:
        inbox(parts)
        router.close(linger_ms=0)

    with (
        mailbox(zmq.SocketType.DEALER, lambda _: None, path) as sender,
        mailbox(zmq.SocketType.ROUTER, take, path) as router,
    ):
        sender.send(b"first")
        sender.send(b"second")
        await inbox.wait_for(1)
        await asyncio.sleep(0.05)
    assert len(inbox.messages) == 1
    assert not caplog.records

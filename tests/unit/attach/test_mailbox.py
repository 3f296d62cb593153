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
        await self.until(lambda: len(self.messages) >= count)
        return self.messages

    async def wait_for_bodies(self, count: int) -> list[bytes]:
        """Collect what a ROUTER receives, in any number of messages."""
        await self.until(lambda: len(self._bodies()) >= count)
        return self._bodies()

    async def until(self, enough: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not enough():
                self._came.clear()
                await self._came.wait()

    def _bodies(self) -> list[bytes]:
        return [body for _, *bodies in self.messages for body in bodies]


@pytest.mark.parametrize("count", [1, 64, 1_000])
async def test_every_message_comes_once_and_in_order(path: Path, count: int) -> None:
    inbox = Inbox()
    with (
        mailbox(zmq.SocketType.ROUTER, inbox, path),
        mailbox(zmq.SocketType.DEALER, lambda _: None, path) as sender,
    ):
        for number in range(count):
            sender.send(b"%d" % number)
            if number % 3 == 0:
                await asyncio.sleep(0)
        came = await inbox.wait_for_bodies(count)
    assert came == [b"%d" % number for number in range(count)]


async def test_what_is_sent_in_one_turn_leaves_as_one_message_to_each_receiver(path: Path) -> None:
    inboxes = [Inbox(), Inbox()]
    hello = Inbox()
    with (
        mailbox(zmq.SocketType.ROUTER, hello, path) as router,
        mailbox(zmq.SocketType.DEALER, inboxes[0], path) as first,
        mailbox(zmq.SocketType.DEALER, inboxes[1], path) as second,
    ):
        first.send(b"0")
        second.send(b"1")
        names = {body: name for name, body in await hello.wait_for(2)}
        for number in range(6):
            router.send(b"%d" % number, names[b"%d" % (number % 2)])
        assert await inboxes[0].wait_for(1) == [[b"0", b"2", b"4"]]
        assert await inboxes[1].wait_for(1) == [[b"1", b"3", b"5"]]


async def test_what_was_sent_before_closing_leaves(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = Inbox()
    with mailbox(zmq.SocketType.ROUTER, inbox, path):
        with mailbox(zmq.SocketType.DEALER, lambda _: None, path) as sender:
            sender.send(b"first")
            await inbox.wait_for(1)
            sender.send(b"last")
            sender.close(linger_ms=60_000)
        assert [body for _, body in await inbox.wait_for(2)] == [b"first", b"last"]
    assert not caplog.records


async def test_both_ends_talk_at_once(path: Path) -> None:
    """Every use of a ZMQ socket resets the signal of a received message; none may be missed."""
    turns, seen = 300, Inbox()

    def reply(parts: Parts) -> None:
        name, body = parts
        for delay_s in (0.0, 1e-4, 3e-4):  # in turns of their own
            asyncio.get_running_loop().call_later(delay_s, router.send, body, name)

    def next_turn(parts: Parts) -> None:
        before = pongs()
        seen(parts)
        if pongs() // 3 > before // 3 and pongs() < 3 * turns:
            dealer.send(b"ping")

    def pongs() -> int:
        return sum(map(len, seen.messages))

    with (
        mailbox(zmq.SocketType.ROUTER, reply, path) as router,
        mailbox(zmq.SocketType.DEALER, next_turn, path) as dealer,
    ):
        dealer.send(b"ping")
        await seen.until(lambda: pongs() >= 3 * turns)


async def test_what_is_sent_to_nobody_waits_for_somebody(path: Path) -> None:
    inbox = Inbox()
    with mailbox(zmq.SocketType.DEALER, lambda _: None, path) as sender:
        sender.send(b"early")
        await asyncio.sleep(0.05)
        with mailbox(zmq.SocketType.ROUTER, inbox, path):
            sender.send(b"late")
            came = await inbox.wait_for_bodies(2)
    assert came == [b"early", b"late"]


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
            await asyncio.sleep(0.01)
        await inbox.wait_for(4)
    assert [str(failure) for failure in failures] == ["bad", "bad"]


async def test_what_came_before_the_mailbox_is_taken(path: Path) -> None:
    inbox = Inbox()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    with context.socket(zmq.SocketType.PAIR) as receiver:
        receiver.bind(f"ipc://{path}")
        with context.socket(zmq.SocketType.PAIR) as sender:
            sender.connect(f"ipc://{path}")
            sender.send(b"early")
            assert receiver.poll(60_000)
            box = Mailbox(receiver, inbox)  # its file descriptor was signalled already
            assert await inbox.wait_for(1) == [[b"early"]]
            box.close(linger_ms=0)


async def test_what_is_sent_once_closed_goes_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    sender = Mailbox(context.socket(zmq.SocketType.DEALER), lambda _: None)
    sender.close(linger_ms=0)
    sender.send(b"late")
    await asyncio.sleep(0.01)
    assert not caplog.records


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
        await asyncio.sleep(0)
        sender.send(b"second")
        await inbox.wait_for(1)
        await asyncio.sleep(0.05)
    assert len(inbox.messages) == 1
    assert not caplog.records

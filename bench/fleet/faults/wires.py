"""TCP proxies in front of engines that can cut connections, or stop passing data for a while."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_AT_ONCE = struct.pack("ii", 1, 0)
"""Value of SO_LINGER: closing a connection resets it and drops unsent data."""


class Wire:
    """A proxy: accepts connections at its own port, and forwards their data to another port."""

    def __init__(self, target: int) -> None:
        self.port = 0
        self._target = target
        self._carries = asyncio.Event()
        self._carries.set()
        self._ends: set[asyncio.StreamWriter] = set()
        self._loop: asyncio.AbstractEventLoop

    def cut(self) -> None:
        """Reset every connection, at both ends."""
        self._loop.call_soon_threadsafe(self._reset)

    def silence(self) -> None:
        """Stop forwarding data until `resume`; connections stay open."""
        self._loop.call_soon_threadsafe(self._carries.clear)

    def resume(self) -> None:
        self._loop.call_soon_threadsafe(self._carries.set)

    async def run(self, ready: threading.Event, over: asyncio.Event) -> None:
        """Serve until `over`."""
        self._loop = asyncio.get_running_loop()
        async with await asyncio.start_server(self._join, "127.0.0.1", 0) as server:
            self.port = server.sockets[0].getsockname()[1]
            ready.set()
            await over.wait()
            self._carries.set()
            self._reset()

    async def _join(self, near_in: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        try:
            far_in, far = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            near.transport.abort()
            return
        self._ends |= {near, far}
        try:
            await asyncio.gather(self._carry(near_in, far), self._carry(far_in, near))
        finally:
            self._ends -= {near, far}

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while piece := await source.read(1 << 16):
                await self._carries.wait()
                sink.write(piece)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()

    def _reset(self) -> None:
        for each in self._ends:
            connection = each.get_extra_info("socket")
            if not each.is_closing():
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            each.transport.abort()


@contextmanager
def wires_to(ports: Sequence[int]) -> Iterator[list[Wire]]:
    """Run a wire to each of these ports of this machine, all in one further thread."""
    wires, ready = [Wire(port) for port in ports], [threading.Event() for _ in ports]
    over, loops = asyncio.Event(), list[asyncio.AbstractEventLoop]()

    async def run_all() -> None:
        loops.append(asyncio.get_running_loop())
        await asyncio.gather(*(w.run(r, over) for w, r in zip(wires, ready, strict=True)))

    thread = threading.Thread(target=asyncio.run, args=(run_all(),))
    thread.start()
    for each in ready:
        each.wait()
    try:
        yield wires
    finally:
        loops[0].call_soon_threadsafe(over.set)
        thread.join()

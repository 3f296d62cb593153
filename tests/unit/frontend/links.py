"""What takes the place of a front-end process and its scheduler."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np

from sglang_prefill_ext.frontend.exchange import PackedExchange
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.wire.packed import Float32Array, PackedRows


@dataclass
class StubAnswer:
    status: str = "ok"
    message: str = ""
    values: Sequence[float] = ()
    forwards: int = 1
    tokens_computed: int = 5
    queue_ms: float = 1.5
    compute_ms: float = 2.5
    retry_after_s: float = 0.0
    tokens_cached: int = 0

    def row_values(self) -> Float32Array:
        return np.array(self.values, dtype=np.float32)


class StubLink:
    """Notes what is sent; `on_send` plays the scheduler."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, PackedRows]] = []
        self.options: list[RequestOptions] = []
        self.aborted: list[str] = []
        self.encoded: list[list[str]] = []
        self.encoding_threads: list[threading.Thread] = []
        self.admitted = 0
        self.first_tokens: list[int] = []
        self.on_send: Callable[[str, PackedRows], None] = lambda rid, rows: None

    @asynccontextmanager
    async def admission(self) -> AsyncIterator[None]:
        self.admitted += 1
        try:
            yield
        finally:
            self.admitted -= 1

    def send(self, rid: str, rows: PackedRows, options: RequestOptions) -> None:
        assert self.admitted > 0
        self.sent.append((rid, rows))
        self.options.append(options)
        self.on_send(rid, rows)

    def abort(self, rid: str) -> None:
        self.aborted.append(rid)

    def encode(self, texts: Sequence[str], *, continued: bool = False) -> list[list[int]]:
        self.encoded.append(list(texts))
        self.encoding_threads.append(threading.current_thread())
        begin = [] if continued else self.first_tokens
        return [begin + list(text.encode()) for text in texts]

    def longest_prompt(self) -> int:
        return 100_000


def answer_at_once(
    link: StubLink, exchange: PackedExchange, answer: Callable[[PackedRows], StubAnswer]
) -> None:
    """Have every packed request answered in the next turn of the event loop."""

    def on_send(rid: str, rows: PackedRows) -> None:
        asyncio.get_running_loop().call_soon(exchange.deliver, rid, answer(rows))

    link.on_send = on_send


class StubRequest:
    """A client that is gone when it is asked for the `patience`-th time."""

    def __init__(self, patience: int) -> None:
        self.patience = patience

    async def is_disconnected(self) -> bool:
        self.patience -= 1
        return self.patience <= 0

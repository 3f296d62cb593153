"""Stand-ins for a front-end process and its scheduler."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.frontend.exchange import PackedExchange
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.frontend.packed_path import PackedPath
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.texts.libraries import flat
from sglang_prefill_ext.wire.arrays import NO_INTS, EmbeddingKind, FlatRows, Int32Array
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows
from sglang_prefill_ext.wire.status import Status

_DEFAULTS = PrefillOnlyConfig()


def stub_answer(
    status: str = "ok",
    message: str = "",
    values: Sequence[float] | np.ndarray[Any, Any] = (),
    **others: Any,
) -> PackedResult:
    """An answer with some usual numbers."""
    data = np.array(values, dtype=np.float32).tobytes()
    usual = {"forwards": 1, "tokens_computed": 5, "queue_ms": 1.5, "compute_ms": 2.5}
    return PackedResult(Status(status), message, data, **(usual | others))


class StubLink:
    """Notes what is sent; `on_send` plays the scheduler, `is_open` the end of a pause."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, PackedRows]] = []
        self.options: list[RequestOptions] = []
        self.aborted: list[str] = []
        self.encoded: list[list[str]] = []
        self.encoding_threads: list[threading.Thread] = []
        self.admitted = 0
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.first_tokens: list[int] = []
        self.on_send: Callable[[str, PackedRows], None] = lambda rid, rows: None

    @asynccontextmanager
    async def admission(self, _request: Any = None) -> AsyncIterator[None]:
        await self.is_open.wait()
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

    def encode_joined(
        self, shared: str, items: Sequence[str], *, item_first: bool
    ) -> tuple[Int32Array, FlatRows]:
        texts = [item + shared if item_first else shared + item for item in items]
        return NO_INTS, flat(self.encode(texts))

    def longest_prompt(self) -> int:
        return 100_000

    longest_packed = 100_000


def path_of(
    link: StubLink,
    config: PrefillOnlyConfig | None = None,
    *,
    max_row_tokens: int = 1000,
    metrics: FrontendMetrics | None = None,
    **about: Any,
) -> PackedPath:
    """A packed path over the link, to a small model whose properties may be changed."""
    model = {
        "vocab_size": 300,
        "label_vocab_size": 300,
        "embeddings": EmbeddingKind(4, "float32"),
        "has_tokenizer": True,
        "truncates": False,
    }
    return PackedPath(
        link,
        PackedExchange(link, max_row_tokens=max_row_tokens),
        config or PrefillOnlyConfig(),
        metrics or FrontendMetrics(),
        **(model | about),
    )


def answer_at_once(
    link: StubLink, exchange: PackedExchange, answer: Callable[[PackedRows], PackedResult]
) -> None:
    """Let every packed request be answered in the next turn of the event loop."""

    def on_send(rid: str, rows: PackedRows) -> None:
        asyncio.get_running_loop().call_soon(exchange.deliver, rid, answer(rows))

    link.on_send = on_send


class PathSetup:
    """A packed path over a stub link.

    `settings` are those of `PrefillOnlyConfig` and what `path_of` takes.
    """

    def __init__(self, *, max_row_tokens: int = 1000, **settings: Any) -> None:
        knobs = {name: settings.pop(name) for name in [*settings] if hasattr(_DEFAULTS, name)}
        self.link = StubLink()
        config = PrefillOnlyConfig(**knobs)
        self.path = path_of(self.link, config, max_row_tokens=max_row_tokens, **settings)
        self.exchange, self.metrics = self.path.exchange, self.path.metrics

    def answer(self, answer: Callable[[PackedRows], PackedResult] | PackedResult) -> None:
        """Let every packed request from now on be answered in the next turn of the event loop."""
        always = (lambda rows: answer) if isinstance(answer, PackedResult) else answer
        answer_at_once(self.link, self.exchange, always)

    def sent_rows(self) -> PackedRows:
        """What was sent, by one packed request."""
        ((_, rows),) = self.link.sent
        return rows

    def is_idle(self) -> bool:
        """Whether nothing is left of the calls."""
        return self.exchange.in_flight == self.link.admitted == 0


async def answered_meanwhile(
    call: Awaitable[Any],
    others: Callable[[], Awaitable[Any]],
    module: Any,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    """Run a call whose `module.name` blocks until other calls were answered; return its result.

    If that function runs on the event loop, no other call can be answered, and this fails.
    """
    begun, go_on, function = asyncio.Event(), threading.Event(), getattr(module, name)
    loop = asyncio.get_running_loop()

    def waiting(*args: Any, **kwargs: Any) -> Any:
        assert threading.current_thread() is not threading.main_thread(), "on the event loop"
        loop.call_soon_threadsafe(begun.set)
        go_on.wait()
        return function(*args, **kwargs)

    monkeypatch.setattr(module, name, waiting)
    task = asyncio.ensure_future(call)
    ready = asyncio.ensure_future(begun.wait())
    await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
    ready.cancel()
    if task.done():
        return await task
    try:
        monkeypatch.setattr(module, name, function)
        await others()
        assert not task.done()
    finally:
        go_on.set()
    return await task


class StubRequest:
    """A client that is gone when it is asked for the `patience`-th time."""

    def __init__(self, patience: int) -> None:
        self.patience = patience

    async def is_disconnected(self) -> bool:
        self.patience -= 1
        return self.patience <= 0

"""Stub engines, each at its own port; only their routes for routers are real."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from sglang_prefill_ext.attach.carrier import Offer, digest_of
from sglang_prefill_ext.border.http_server.carrier_routes import add_carrier_routes
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.frontend.ask_processes import Turns
from sglang_prefill_ext.frontend.options import TIMEOUT_HEADER
from sglang_prefill_ext.frontend.score.rerank import Reranking
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows
from sglang_prefill_ext.wire.status import Status
from tests.unit.attach.engines import STATUS, StubEngine, facts
from tests.unit.waiting import until

TEMPLATE = "{{ messages[0].content }} {{ messages[1].content }}"


def an_offer(**changes: Any) -> Offer:
    known: dict[str, Any] = {
        "facts": facts(config=PrefillOnlyConfig(max_items=500)),
        "served_name": "m",
        "model_path": "m",
        "settings": {"weight version": "default"},
        "reranking": Reranking(TEMPLATE, 1, 2),
    }
    known |= changes
    return Offer(tokenizer_digest=digest_of(known["facts"].tokenizer), **known)


class CountingEngine(StubEngine):
    """Answers a row's label values with numbers that depend only on its last token.

    Attributes:
        end: returned instead of such an answer, if set.
    """

    tokens, weights, leaving, paused = 0, "m default", False, False
    end: PackedResult | None = None

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def answer(self, rows: PackedRows) -> PackedResult:
        self.rows.append(rows.num_rows)
        if self.end is not None:
            return self.end
        ends = rows.prefix_len + np.cumsum(rows.suffix_lens) - 1
        last = rows.tokens[ends].astype(np.float32)
        values = -last[:, None] * np.arange(1, rows.read.num_values(1) + 1, dtype=np.float32) / 10
        return PackedResult(Status.OK, values=values.astype("<f4").tobytes(), forwards=1)


@dataclass
class Stub:
    """A running stub engine.

    Attributes:
        whole: path and body of each undivided request that it got.
        timeout: value of the timeout header in the last of these.
        dies_within: whether its answers to undivided requests break off.
        broken: whether it fails to report its state.
        busy_s: computing time that it reports.
        thinks_s: how long its schedulers take to answer.
    """

    offer: Offer = field(default_factory=an_offer)
    engine: CountingEngine = field(default_factory=CountingEngine)
    whole: list[tuple[str, bytes]] = field(default_factory=list)
    timeout: str | None = None
    url: str = ""
    dies_within: bool = False
    broken: bool = False
    busy_s: float = 1.0
    thinks_s: float = 0.0

    def app(self) -> FastAPI:
        app = FastAPI()
        add_carrier_routes(app, self.engine, lambda: self.offer, Turns(self._status))

        @app.api_route("/{path:path}", methods=["GET", "POST"])
        async def anything(request: Request) -> Response:
            self.whole.append((request.url.path, await request.body()))
            self.timeout = request.headers.get(TIMEOUT_HEADER)
            if (path := request.url.path).endswith("/"):
                return RedirectResponse(request.url.replace(path=path.rstrip("/")))
            kept = {"x-own": request.headers.get("x-mine", ""), "content-type": "text/odd"}
            return StreamingResponse(self._parts(), 418, kept)

        return app

    async def _status(self) -> list[dict[str, Any]]:
        if self.broken:
            raise HTTPException(500)
        await asyncio.sleep(self.thinks_s)
        return [STATUS | {"busy_s": self.busy_s}]

    async def _parts(self) -> AsyncIterator[bytes]:
        for part in (b"whole ", b"answer"):
            yield part
            if self.dies_within:
                raise ConnectionError("gone")


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """Serve an application; yields its URL.

    uvicorn's own loop would notice only after 0.1 s that the server shall end, and wait for more.
    """
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None)
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    (listening,) = server.servers
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()
        state = server.server_state
        for connection in list(state.connections):
            connection.shutdown()
        await until(lambda: not (state.connections or state.tasks))
        await server.lifespan.shutdown()

"""One engine of a fleet, as its router reaches it."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Mapping

from sglang_prefill_ext.attach import carrier
from sglang_prefill_ext.attach.carrier import EngineState, Offer, PartAnswer
from sglang_prefill_ext.attach.http_connections import Answer, HttpConnections
from sglang_prefill_ext.attach.messages import Stock, StockAnswer, StockError
from sglang_prefill_ext.errors import EngineUnavailableError
from sglang_prefill_ext.frontend.options import RequestOptions, authorization, headers_from

BEAT_S = 1.0
"""How often an engine is asked for its state."""

_STATE_S = 2.0
"""Limit for its answer. The first answer has more time, as it brings the tokenizer."""

_FIRST_STATE_S = 20.0


class Replica:
    """An engine.

    Args:
        url: without a path.
        api_key: of the engine; empty for none.

    Attributes:
        connections: to it, with its key.
        offer: its latest one; None before its first answer.
        why: why it is not used, for the status page; empty if it is.
        differs: it is not used because it differs from the others.
        whole: number of undivided requests that it is answering.
        heard: it has answered, or failed to, at least once.
    """

    def __init__(self, url: str, api_key: str = "") -> None:
        self.url = url
        self.offer: Offer | None = None
        self.why, self.differs = "It has not answered yet.", False
        self.whole = 0
        self.heard = False
        self.connections = HttpConnections(url, authorization(api_key))
        self._fingerprint = ""

    async def ask(self, body: bytes, options: RequestOptions) -> PartAnswer:
        """Have rows served.

        Raises:
            EngineUnavailableError: there is no answer.
        """
        return carrier.answer_from(await self._post(carrier.ROWS_PATH, body, headers_from(options)))

    async def call(self, call: Stock) -> StockAnswer | StockError:
        """Have a call served by SGLang itself.

        Raises:
            EngineUnavailableError: there is no answer.
        """
        body = carrier.encode(call)
        return carrier.call_answer_from(await self._post(carrier.CALLS_PATH, body, {}))

    async def state(self) -> EngineState:
        """Ask for the engine's state, and keep its offer.

        Raises:
            EngineUnavailableError: it does not answer, or is no engine of this version.
        """
        limit_s = _STATE_S if self._fingerprint else _FIRST_STATE_S
        tokenizer = "" if self.offer is None else self.offer.tokenizer_digest
        target = f"{carrier.FACTS_PATH}?known={self._fingerprint}&tokenizer={tokenizer}"
        state = carrier.state_from(await _content(self.connections.get(target, limit_s)))
        if state.offer is not None:
            self.offer, self._fingerprint = self._complete(state.offer), state.fingerprint
        return state

    def _complete(self, offer: Offer) -> Offer:
        """The offer with its tokenizer: the text of many MB that all offers of it share."""
        known = self.offer
        if known is not None and known.tokenizer_digest == offer.tokenizer_digest:
            return carrier.with_tokenizer(offer, known.facts.tokenizer)
        return carrier.with_tokenizer(offer, sys.intern(offer.facts.tokenizer))

    async def _post(self, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        headers = {"content-type": carrier.MSGPACK, **headers}
        return await _content(self.connections.post(path, body, headers))


async def _content(asking: Awaitable[Answer]) -> bytes:
    """The body of an answer.

    Raises:
        EngineUnavailableError: there is none, or it is a refusal.
    """
    try:
        answer = await asking
    except EngineUnavailableError as error:
        raise EngineUnavailableError(f"It does not answer ({error}).") from error
    if answer.status != 200:
        raise _refusal(answer.status, answer.body)
    return answer.body


def _refusal(status: int, content: bytes) -> EngineUnavailableError:
    remedies = {
        401: "Give the engine's key with --api-key.",
        403: "Give the engine's key with --api-key.",
        404: "Start it with --enable-prefill-only and this version of sglang-prefill-ext.",
    }
    told = content[:200].decode(errors="replace")
    return EngineUnavailableError(
        f"It refuses with HTTP {status} ({told}). {remedies.get(status, '')}"
    )

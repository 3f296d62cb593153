"""A stand-in for a scoring server: answers `/v1/score` and the status page."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, field

_LENGTH = re.compile(rb"Content-Length: (\d+)")


@dataclass
class StandIn:
    """Scores are a function of the tokens; the knobs below make it misbehave."""

    port: int = 0
    delay_s: float = 0.0
    status: int = 200
    keep_length: bool = True
    chunk_bytes: int = 1 << 20
    shift: float = 0.0
    extension_shift: float = 0.0
    counts_packed: bool = False
    packed: int = 0
    seen: list[dict[str, object]] = field(default_factory=list)

    def score(self, body: bytes) -> bytes:
        request = json.loads(body)
        self.seen.append(request)
        self.packed += self.counts_packed
        query = sum(request["query"])
        first = [(query + sum(item)) % 997 / 997 + self.shift for item in request["items"]]
        answer = {"scores": [[p, 1 - p] for p in first]}
        if request["return_token_logprobs"]:
            answer["token_logprobs"] = [[p - 1, -p] for p in first]
        return json.dumps(answer).encode()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = _LENGTH.search(head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                await asyncio.sleep(self.delay_s)
                await self._answer(writer, self._body(head, body))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _body(self, head: bytes, body: bytes) -> bytes:
        if head.startswith(b"POST /v1/score "):
            return self.score(body)
        assert head.startswith(b"GET /prefill_only/status ")
        return json.dumps(
            {"frontend": {"counters": {"requests": {"packed": self.packed}}}}
        ).encode()

    async def _answer(self, writer: asyncio.StreamWriter, body: bytes) -> None:
        length = f"content-length: {len(body)}\r\n" if self.keep_length else ""
        answer = f"HTTP/1.1 {self.status} Some Reason\r\n{length}\r\n".encode() + body
        for start in range(0, len(answer), self.chunk_bytes):
            writer.write(answer[start : start + self.chunk_bytes])
            await writer.drain()
            if self.chunk_bytes < len(answer):
                await asyncio.sleep(0.001)  # so that the pieces arrive one by one

"""A stand-in for a server: answers scores, streams `/generate`, has a status page."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, field
from typing import Any

_CHUNKED = b"transfer-encoding: chunked\r\ncontent-type: text/event-stream\r\n\r\n"
_LENGTH = re.compile(rb"Content-Length: (\d+)")


@dataclass
class StandIn:
    """Answers are a function of the tokens; the knobs below make it misbehave.

    Attributes:
        answers_together: the first answers wait until this many requests have arrived.
        packed: what the status page counts of requests and of forwards.
        seen: bodies of scoring requests.
        emptied: how often its prefix cache was emptied.
    """

    port: int = 0
    status: int = 200
    keep_length: bool = True
    chunk_bytes: int = 1 << 20
    answers_together: int = 0
    packed: int = 0
    seen: list[dict[str, object]] = field(default_factory=list)
    emptied: int = 0
    _together: asyncio.Event = field(default_factory=asyncio.Event)
    _waiting: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = _LENGTH.search(head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                await self._wait_for_others()
                if head.startswith(b"POST /generate "):
                    await self._stream(writer, json.loads(body))
                else:
                    await self._answer(writer, self._body(head, body))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _wait_for_others(self) -> None:
        self._waiting += 1
        if self._waiting >= self.answers_together:
            self._together.set()
        await self._together.wait()

    def _body(self, head: bytes, body: bytes) -> bytes:
        if head.startswith(b"POST /v1/score "):
            return self._score(body)
        if head.startswith(b"POST /flush_cache?"):
            self.emptied += 1
            return b"as asked"
        assert head.startswith(b"GET /prefill_only/status ")
        status = {
            "frontend": {"counters": {"requests": {"packed": self.packed}}},
            "schedulers": [
                {
                    "counters": {"forwards": self.packed, "requests": {"ok": self.packed}},
                    "busy_s": 0.25,
                }
            ],
        }
        return json.dumps(status).encode()

    def _score(self, body: bytes) -> bytes:
        request = json.loads(body)
        self.seen.append(request)
        query = sum(request["query"])
        first = [(query + sum(item)) % 997 / 997 for item in request["items"]]
        return json.dumps({"scores": [[p, 1 - p] for p in first]}).encode()

    async def _stream(self, writer: asyncio.StreamWriter, request: dict[str, Any]) -> None:
        """Each event repeats all tokens so far, as SGLang's do."""
        await self._send(writer, f"HTTP/1.1 {self.status} Some Reason\r\n".encode() + _CHUNKED)
        first = sum(request["input_ids"])
        ids = [first + n for n in range(request["sampling_params"]["max_new_tokens"])]
        for end in range(1, len(ids) + 1):
            await asyncio.sleep(0.001)
            await self._send(writer, _chunk(json.dumps({"output_ids": ids[:end]}).encode()))
        await self._send(writer, _chunk(b"[DONE]") + b"0\r\n\r\n")

    async def _answer(self, writer: asyncio.StreamWriter, body: bytes) -> None:
        length = f"content-length: {len(body)}\r\n" if self.keep_length else ""
        await self._send(
            writer, f"HTTP/1.1 {self.status} Some Reason\r\n{length}\r\n".encode() + body
        )

    async def _send(self, writer: asyncio.StreamWriter, answer: bytes) -> None:
        for start in range(0, len(answer), self.chunk_bytes):
            writer.write(answer[start : start + self.chunk_bytes])
            await writer.drain()
            if self.chunk_bytes < len(answer):
                await asyncio.sleep(0.001)  # so that the pieces arrive one by one


def _chunk(event: bytes) -> bytes:
    data = b"data: " + event + b"\n\n"
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"

"""A stand-in for a server: answers scores and embeddings, streams `/generate`, has a status."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from dataclasses import dataclass, field
from typing import Any

_CHUNKED = b"transfer-encoding: chunked\r\ncontent-type: text/event-stream\r\n\r\n"
_LENGTH = re.compile(rb"Content-Length: (\d+)")


@dataclass
class StandIn:
    """Answers are a function of the tokens; the knobs below make it misbehave.

    The status page tells that every packed request had a forward of its own, and that packed
    forwards kept the device busy for a quarter of the time.
    """

    port: int = 0
    delay_s: float = 0.0
    status: int = 200
    keep_length: bool = True
    chunk_bytes: int = 1 << 20
    shift: float = 0.0
    extension_shift: float = 0.0
    counts_packed: bool = False
    packed: int = 0
    token_delay_s: float = 0.001
    id_shift: int = 0
    extension_id_shift: int = 0
    declines: bool = False
    shift_per_request: float = 0.0
    seen: list[dict[str, object]] = field(default_factory=list)

    def score(self, body: bytes) -> bytes:
        request = json.loads(body)
        self.seen.append(request)
        self.packed += self.counts_packed
        self.shift += self.shift_per_request
        query = sum(request["query"])
        first = [(query + sum(item)) % 997 / 997 + self.shift for item in request["items"]]
        answer = {"scores": [[p, 1 - p] for p in first]}
        if request["return_token_logprobs"]:
            answer["token_logprobs"] = [[p - 1, -p] for p in first]
        return json.dumps(answer).encode()

    def embedding(self, body: bytes) -> bytes:
        self.packed += self.counts_packed
        vector = [sum(json.loads(body)["input"]) % 997 / 997 + self.shift]
        return json.dumps({"data": [{"embedding": vector}]}).encode()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = _LENGTH.search(head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                await asyncio.sleep(self.delay_s)
                if head.startswith(b"POST /generate "):
                    await self._stream(writer, json.loads(body))
                else:
                    await self._answer(writer, self._body(head, body))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _body(self, head: bytes, body: bytes) -> bytes:
        if head.startswith(b"POST /v1/score "):
            return self.score(body)
        if head.startswith(b"POST /v1/embeddings "):
            return self.embedding(body)
        if head.startswith(b"POST /prefill_only/gc "):
            return self._gc_reports()
        assert head.startswith(b"GET /prefill_only/status ")
        counters = {"forwards": self.packed, "requests": {"ok": self.packed}}
        scheduler = {"counters": counters, "busy_s": time.perf_counter() / 4}
        status = {
            "frontend": {"counters": {"requests": {"packed": self.packed}}},
            "schedulers": [scheduler],
        }
        return json.dumps(status).encode()

    def _gc_reports(self) -> bytes:
        """Of one process, this one, with a short pause for every packed request."""
        within = {"20": self.packed}
        pauses = {"count": self.packed, "within_ms": within, "cpu_within_ms": within}
        report = {"pid": os.getpid(), "role": "scheduler", "pauses": pauses}
        return json.dumps({"complete": not self.declines, "processes": [report]}).encode()

    async def _stream(self, writer: asyncio.StreamWriter, request: dict[str, Any]) -> None:
        """Each event repeats all tokens so far, as SGLang's do."""
        await self._send(writer, f"HTTP/1.1 {self.status} Some Reason\r\n".encode() + _CHUNKED)
        first = sum(request["input_ids"]) + self.id_shift
        ids = [first + n for n in range(request["sampling_params"]["max_new_tokens"])]
        for end in range(1, len(ids) + 1):
            await asyncio.sleep(self.token_delay_s)
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

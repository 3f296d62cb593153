"""Sends one body down both paths of a server, and compares status, fields, numbers and errors."""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from operator import itemgetter
from typing import Any

import httpx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.gate import VOLATILE
from tests.integration.support.client import OPT_OUT, Client, Json
from tests.integration.support.fuzz_spoiling import LIMITS, encoded, spoilt
from tests.integration.support.parity import assert_same, assert_same_ranking

_JSON = {"content-type": "application/json"}
_RANDOM = re.compile(
    r"\b[0-9a-f]{32}\b|0x[0-9a-f]+|\(field `[^`]*`\)|[a-z_]*embed_overrides[][0-9]*:"
)
"""Parts of error messages that may differ: ids of requests, addresses, and names of the input."""

TIMES = {
    *("queue_time", "forward_entry_time", "prefill_finished_time", "storage_prefetch_wait"),
    *("storage_staging_wait", "first_token_latency", "decode_throughput", "request_received_ts"),
    *("api_server_dispatch_finish_ts", "request_finished_ts"),
}
"""Times in answers with --enable-metrics; on the packed path, those for vectors lack some."""

_RERANK = "/v1/rerank"

_GENERATING = ("/generate", "/v1/completions", "/v1/chat/completions")

_CUT = (httpx.ReadError, httpx.RemoteProtocolError)

_TIES_FROM = 100
"""Among more best tokens than this, some are equally probable, up to the last bits."""

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))


def fuzz(client: Client, path: str, bodies: st.SearchStrategy[Json], examples: int = 60) -> None:
    """Send right and wrong bodies down both paths of a server, which must not lose memory.

    Args:
        examples: how many, the same in every run; FUZZ_EXAMPLES asks for so many new ones instead.
    """

    @settings(max_examples=EXAMPLES or examples, derandomize=not EXAMPLES, database=None)
    @given(spoilt(bodies) | bodies.map(encoded))
    def answered_alike(body: str) -> None:
        assert_answered_alike(client, path, body)

    before = client.memory()
    with client.counting() as moved:
        answered_alike()
    assert moved["frontend.requests.packed"], "the two paths were one"
    client.assert_memory_returns_to(before)


def assert_answered_alike(client: Client, path: str, body: str) -> None:
    """Send JSON down both paths of a server, and compare what comes back."""
    packed, stock = (_answer(client.http, path, body, headers) for headers in ({}, OPT_OUT))
    assert packed[:2] == stock[:2], f"{packed} instead of {stock}"
    found, wanted = packed[2], stock[2]
    if packed[0] == 200 and not _is_exact(path, body):
        found, wanted = _outline(found), _outline(wanted)
    if packed[0] == 200 and path == _RERANK:
        assert_same_ranking(found, wanted)
    else:
        assert_same(found, wanted)
    assert _order(found) == _order(wanted), "the fields are the same, their order is not"


def _answer(http: httpx.Client, path: str, body: str, headers: Json) -> tuple[int, str, Any]:
    """Status, content type and content; the content of a stream is the list of its events.

    After an error that SGLang does not expect, it also closes the connection. That may happen
    before the answer is read, or only when the next request is on its way. So a request whose
    connection breaks is sent again, on a new one; if that breaks, too, it counts as HTTP 500.
    """
    asked: Json = {"content": body.encode(), "headers": _JSON | headers}
    try:
        try:
            reply = http.post(path, **asked)
        except _CUT:
            with httpx.Client(base_url=http.base_url, timeout=http.timeout) as fresh:
                reply = fresh.post(path, **asked)
    except _CUT:
        return 500, "text/plain; charset=utf-8", "Internal Server Error"
    kind = reply.headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        # Not `splitlines`: some tokens are characters at which it splits.
        lines = (line.removeprefix("data: ") for line in reply.text.split("\n") if line)
        events = [_read(line) for line in lines]
        return reply.status_code, kind, sorted(events, key=_prompt_of)
    return reply.status_code, kind, _read(reply.text)


def _prompt_of(event: Any) -> int:
    """The index of an event's prompt, to sort by: events of several prompts come in any order."""
    if not isinstance(event, dict):
        return sys.maxsize
    choices = event.get("choices") or [event]
    number = choices[0].get("index", -1)
    return sys.maxsize - 1 if number < 0 and "usage" in event else int(number)


def _read(text: str) -> Any:
    try:
        return _plain(json.loads(text))
    except ValueError:
        return _RANDOM.sub("random", text)


def _plain(value: Any) -> Any:
    """Remove what differs from call to call, and decode vectors from base64.

    If there are many best tokens (`[log-prob, id, text]` each, or by text), they are sorted by id
    or text.
    """
    if isinstance(value, list):
        if len(value) > _TIES_FROM and all(map(_is_best, value)):
            value = sorted(value, key=itemgetter(1))
        elif len(value) > _TIES_FROM and all(map(_is_best_of_chat, value)):
            value = sorted(value, key=itemgetter("token"))
        return [_plain(each) for each in value]
    if isinstance(value, str):
        return _RANDOM.sub("random", value)
    if not isinstance(value, dict):
        return value
    if isinstance(vector := value.get("embedding"), str):
        value["embedding"] = np.frombuffer(base64.b64decode(vector), "<f4").tolist()
    fields = sorted(value.items()) if len(value) > _TIES_FROM else value.items()
    return {name: _plain(each) for name, each in fields if name not in TIMES}


def _is_best(value: Any) -> bool:
    return isinstance(value, list) and [*map(type, value[:2])] == [float, int]


def _is_best_of_chat(value: Any) -> bool:
    return isinstance(value, dict) and {"token", "logprob"} <= value.keys()


def _is_exact(path: str, body: str) -> bool:
    """Whether a body determines its answer up to the tolerance.

    A generation must take at most one token, the most probable one. Other calls must not have a
    temperature close to zero, which magnifies differences in the last bits.
    """
    fields = json.loads(body)
    if path == _RERANK:
        return True
    if path not in _GENERATING:
        return fields.get("temperature") not in (1e-9, "1e-9")
    sampling = fields.get("sampling_params", fields)
    listed = sampling if isinstance(sampling, list) else [sampling]
    return all(
        isinstance(each, dict)
        and each.get("temperature") in (0, "0")
        and [each[limit] for limit in LIMITS if limit in each] in ([0], [1])
        for each in listed
    )


def _outline(value: Any) -> Any:
    """The parts of an answer that do not depend on the generated tokens: fields and types."""
    return sorted(value) if isinstance(value, dict) else type(value).__name__


def _order(value: Any) -> Any:
    """The names of fields in their order, at every depth."""
    if isinstance(value, dict):
        return [(name, name in VOLATILE or _order(each)) for name, each in value.items()]
    return [_order(each) for each in value] if isinstance(value, list) else None

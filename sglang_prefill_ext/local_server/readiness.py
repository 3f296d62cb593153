"""Asks a server on this machine whether it is ready."""

from __future__ import annotations

import contextlib
import http
import http.client
import json

_TIMEOUT_S = 30.0

NO_ANSWER = (OSError, http.client.HTTPException)
"""What is raised if a server does not answer."""


def is_healthy(host: str, port: int) -> bool:
    """Whether ``GET /health`` answers 200, which includes one generated token."""
    with contextlib.suppress(*NO_ANSWER):
        return answer_of(host, port, "/health")[0] == http.HTTPStatus.OK
    return False


def is_settled(host: str, port: int) -> bool:
    """Whether the extension has decided how it encodes texts; true without the extension.

    Raises:
        OSError, http.client.HTTPException: the server does not answer.
    """
    status, page = answer_of(host, port, "/prefill_only/status")
    if status == http.HTTPStatus.NOT_FOUND:
        return True
    known = json.loads(page) if status == http.HTTPStatus.OK else None
    return known is not None and bool(known["frontend"]["tokenizer"]["ready"])


def answer_of(host: str, port: int, path: str) -> tuple[int, bytes]:
    """Status and content of an answer; raises what `NO_ANSWER` says."""
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    with contextlib.closing(connection):
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()

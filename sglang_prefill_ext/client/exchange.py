"""One request and its answer, whoever carries them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from sglang_prefill_ext.client.answers import error_of
from sglang_prefill_ext.client.deadline import Deadline
from sglang_prefill_ext.client.options import Options
from sglang_prefill_ext.client.requests import AnswerT, Request
from sglang_prefill_ext.errors import (
    ConfigError,
    DeadlineExceededError,
    ServerUnavailableError,
    UnexpectedAnswerError,
)
from sglang_prefill_ext.frontend.options import ARRAYS_HEADER

DEFAULT_URL = "http://127.0.0.1:30000"
GRPC_SCHEMES = ("grpc://", "grpcs://")

_CONNECT_S = 10.0
# SGLang drops connections that were idle for 5 s; a request sent at that moment is lost.
_KEEP_IDLE_S = 3.0
_SLACK_S = 2.0  # The server's own 504 says more than a connection that we drop.
_NO_CONNECTION = (
    httpx.ConnectTimeout,
    httpx.NetworkError,
    httpx.ProxyError,
    httpx.RemoteProtocolError,
)


def settings(base_url: str, api_key: str | None) -> dict[str, Any]:
    """Return arguments of `httpx.Client` and `httpx.AsyncClient`.

    Raises:
        ConfigError: `base_url` is not the address of a server.
    """
    if not base_url.startswith(("http://", "https://")):
        raise ConfigError(
            f"base_url: {base_url!r} is no address. Write e.g. {DEFAULT_URL}, or "
            "grpc://127.0.0.1:50051 for gRPC front ends."
        )
    headers = {"content-type": "application/json"}
    if api_key:
        headers["authorization"] = f"Bearer {api_key}"
    # How much goes on at a time is the caller's affair; waiting for a place would eat its timeout.
    limits = httpx.Limits(max_connections=None, keepalive_expiry=_KEEP_IDLE_S)
    return {"base_url": base_url, "headers": headers, "limits": limits}


def positive(field: str, value: int) -> int:
    """Return `value`.

    Raises:
        ConfigError: it is below 1.
    """
    if value < 1:
        raise ConfigError(f"{field}: {value} is below 1. Use 1 or more, or leave it out.")
    return value


def require_time(request: Request[Any], options: Options, deadline: Deadline) -> float:
    """Return the seconds left for an attempt that starts now; infinite without a deadline.

    Raises:
        DeadlineExceededError: there is no time left.
    """
    left_s = deadline.left_s()
    if left_s <= 0:
        raise DeadlineExceededError(
            f"{request.asked}: {options.timeout_s:g} s were over before it was sent. "
            "Give the call a longer timeout_s, or fewer items."
        )
    return left_s


def arguments(
    request: Request[Any], options: Options, deadline: Deadline, *, arrays: bool
) -> dict[str, Any]:
    """Return arguments of ``post`` for an attempt that starts now.

    Args:
        arrays: the server `reads_arrays`.

    Raises:
        DeadlineExceededError: there is no time left.
    """
    left_s = require_time(request, options, deadline)
    limited = left_s < math.inf
    read_s = left_s + _SLACK_S if limited else None
    return {
        "url": request.path,
        "content": request.content(arrays=arrays),
        "headers": options.headers(left_s if limited else None),
        "timeout": httpx.Timeout(read_s, connect=min(_CONNECT_S, left_s)),
    }


def reads_arrays(response: httpx.Response) -> bool:
    """Whether the server says that it reads token ids as base64 arrays."""
    return ARRAYS_HEADER in response.headers


@contextmanager
def transport_errors(request: Request[Any], base_url: str) -> Iterator[None]:
    """Turn what goes wrong on the way into errors of ours."""
    try:
        yield
    except _NO_CONNECTION as error:
        raise ServerUnavailableError(
            f"{request.asked}: no connection with {base_url} ({type(error).__name__}: {error}). "
            "Start a server there, or correct the address."
        ) from error
    except httpx.TimeoutException as error:
        raise DeadlineExceededError(
            f"{request.asked}: {base_url} did not answer in time. "
            "Give the call a longer timeout_s, or fewer items."
        ) from error


def answer_to(request: Request[AnswerT], response: httpx.Response) -> AnswerT:
    """Read a response.

    Raises:
        PrefillExtError: the server did not do what was asked, see `answers.error_of`.
        UnexpectedAnswerError: status 200, but not the answer of such a server.
    """
    if response.status_code != 200:
        raise error_of(request.asked, response.status_code, response.headers, response.text)
    try:
        return request.read(response.json(), request.items)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnexpectedAnswerError(
            f"{request.asked}: {response.url} answered {response.text[:80]!r}, which cannot be "
            f"read ({type(error).__name__}: {error}). Check that base_url is an SGLang server."
        ) from error

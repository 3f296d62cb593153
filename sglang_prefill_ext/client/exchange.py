"""Prepares one attempt of a request (address, key, timeouts), and reads its answer or error."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.request import getproxies

import httpx

from sglang_prefill_ext.client.answers import error_of
from sglang_prefill_ext.client.kinds import checked
from sglang_prefill_ext.client.options import Deadline, Options
from sglang_prefill_ext.client.requests import AnswerT, Request
from sglang_prefill_ext.errors import (
    ClientError,
    ConfigError,
    DeadlineExceededError,
    ServerUnavailableError,
    UnexpectedAnswerError,
)
from sglang_prefill_ext.frontend.options import authorization
from sglang_prefill_ext.process.ports import KEEPALIVE, LONGEST_IDLE_S

DEFAULT_URL = "http://127.0.0.1:30000"
GRPC_SCHEMES = ("grpc", "grpcs")

_LAST_PORT = 65535
_CONNECT_S = 10.0
_SLACK_S = 2.0  # Beyond the deadline: the server's own 504 says more than our timeout.
_NO_CONNECTION = (
    httpx.ConnectTimeout,
    httpx.NetworkError,
    httpx.ProxyError,
    httpx.RemoteProtocolError,
)
_NO_ANSWER = (httpx.DecodingError, httpx.TooManyRedirects)


ClientT = TypeVar("ClientT", httpx.Client, httpx.AsyncClient)
_TRANSPORTS = {httpx.Client: httpx.HTTPTransport, httpx.AsyncClient: httpx.AsyncHTTPTransport}


def http_client(
    kind: type[ClientT], base_url: str, api_key: str | None, transport: Any = None
) -> ClientT:
    """Make a client of httpx.

    Args:
        transport: the caller's, if any.

    Raises:
        ConfigError: `base_url` is not the address of a server, `api_key` cannot be sent, or
            `transport` is of the other kind of clients, or none; or the environment names a proxy
            or certificates that cannot be used.
    """
    url = address_of(base_url)
    if url.scheme not in ("http", "https"):
        raise _no_address(base_url)
    headers = {"content-type": "application/json", **authorization(api_key)}
    # The caller limits its requests; waiting for a free connection would use up the timeout.
    limits = httpx.Limits(max_connections=None, keepalive_expiry=LONGEST_IDLE_S)
    own_kind = _TRANSPORTS[kind]
    try:
        if transport is not None:
            checked("transport", transport, own_kind.__mro__[1], ConfigError)  # what it extends
        elif proxies := _proxies():  # httpx uses proxies only without a given transport
            for proxy in proxies:
                httpx.URL(proxy if "://" in proxy else f"http://{proxy}").host.encode("idna")
        else:
            transport = own_kind(limits=limits, socket_options=KEEPALIVE)
        return kind(base_url=url, headers=headers, limits=limits, transport=transport)
    except (ImportError, OSError, ValueError, httpx.InvalidURL) as error:
        raise ConfigError(
            f"No HTTP client can be made ({error}). Correct SSL_CERT_FILE, SSL_CERT_DIR and the "
            "proxies in the environment."
        ) from error


def _proxies() -> list[str]:
    """The proxies that the environment names, without secrets."""
    return sorted({without_secrets(url) for scheme, url in getproxies().items() if scheme != "no"})


def address_of(base_url: str) -> httpx.URL:
    """Return the parts of an address.

    Raises:
        ConfigError: it names no host, or one that no computer can have, or a port that none has; or
            it has more than a path behind them.
    """
    try:
        url = httpx.URL(checked("base_url", base_url, str, ConfigError))
        url.host.encode("idna")  # as sockets do
    except (ValueError, httpx.InvalidURL) as error:
        raise _no_address(base_url) from error
    if not url.host or (url.port or 0) > _LAST_PORT or url.query or url.fragment:
        raise _no_address(base_url)
    return url


def _no_address(base_url: str) -> ConfigError:
    return ConfigError(
        f"base_url: {without_secrets(base_url)!r} is no address. Write e.g. {DEFAULT_URL}, or "
        "grpc://127.0.0.1:50051 for gRPC front ends."
    )


def without_secrets(url: str) -> str:
    """Return an address without the name and password that it may hold."""
    return re.sub(r"^(\w+://)?[^/]*@", r"\1", url)


def positive(field: str, value: int) -> int:
    """Return `value`, or raise ConfigError if it is below 1 or no whole number."""
    if checked(field, value, int, ConfigError) < 1:
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
        arrays: the server reads token ids as base64 arrays.

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


@contextmanager
def transport_errors(request: Request[Any], base_url: str) -> Iterator[None]:
    """Turn httpx's errors into errors of ours."""
    server = without_secrets(base_url)
    try:
        yield
    except _NO_CONNECTION as error:
        remedy = "Start a server there, or correct the address."
        if proxies := ", ".join(_proxies()):
            remedy += f" To ask it without the proxy {proxies}, add its host to NO_PROXY."
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            remedy = "Name the PEM file of its authority in SSL_CERT_FILE."
        raise ServerUnavailableError(
            f"{request.asked}: no connection with {server} ({type(error).__name__}: {error}). "
            f"{remedy}"
        ) from error
    except httpx.TimeoutException as error:
        raise DeadlineExceededError(
            f"{request.asked}: {server} did not answer in time. "
            "Give the call a longer timeout_s, or fewer items."
        ) from error
    except httpx.HTTPError as error:
        kind = UnexpectedAnswerError if isinstance(error, _NO_ANSWER) else ClientError
        raise kind(
            f"{request.asked}: {server} could not be asked ({type(error).__name__}: {error}). "
            "Check that base_url is an SGLang server."
        ) from error


def answer_to(request: Request[AnswerT], response: httpx.Response) -> AnswerT:
    """Read a response.

    Raises:
        PrefillExtError: the server did not do what was asked, see `answers.error_of`.
        UnexpectedAnswerError: status 200, but the answer is not that of an SGLang server.
    """
    if response.status_code != 200:
        raise error_of(request.asked, response.status_code, response.headers, response.text)
    try:
        return request.read(response.json(), request.items)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        url = without_secrets(str(response.url))
        raise UnexpectedAnswerError(
            f"{request.asked}: {url} answered {response.text[:80]!r}, which cannot be "
            f"read ({type(error).__name__}: {error}). Check that base_url is an SGLang server."
        ) from error

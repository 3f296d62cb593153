"""Hands a whole HTTP request to one engine, and streams its answer back."""

from __future__ import annotations

import asyncio
import logging
import socket

import aiohttp
from starlette.requests import Request
from starlette.types import Send
from yarl import URL

from sglang_prefill_ext.attach.http_connections import CONNECT_S
from sglang_prefill_ext.errors import DeadlineExceededError, EngineUnavailableError, RequestError
from sglang_prefill_ext.frontend.client_wait import until_departure
from sglang_prefill_ext.frontend.options import TIMEOUT_HEADER, headers_from, options_of
from sglang_prefill_ext.process.ports import KEEPALIVE, LONGEST_IDLE_S

logger = logging.getLogger(__name__)

_OF_ONE_CONNECTION = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding "
    b"upgrade".split()
)
_HANDLED = _OF_ONE_CONNECTION | {b"host", b"content-length", b"expect"}
_WRITTEN_HERE = _OF_ONE_CONNECTION | {b"date", b"server"}
_CONNECT_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=CONNECT_S)
_SLACK_S = 1.0
"""Time after a request's timeout in which its engine may still report that by itself."""


class NotSentError(EngineUnavailableError):
    """The engine could not be connected to, so any request may be sent to another one."""


def http_session() -> aiohttp.ClientSession:
    """Connections to all engines; made in the event loop that uses them."""
    connector = aiohttp.TCPConnector(
        limit=0, keepalive_timeout=LONGEST_IDLE_S, socket_factory=_kept_alive
    )
    return aiohttp.ClientSession(
        connector=connector, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
    )


def _kept_alive(address: aiohttp.AddrInfoType) -> socket.socket:
    made = socket.socket(*address[:3])
    for option in KEEPALIVE:
        made.setsockopt(*option)
    return made


async def hand_on(
    http: aiohttp.ClientSession, url: str, request: Request, body: bytes, send: Send
) -> None:
    """Have an engine answer a request.

    If the engine goes within its answer, the answer to the client is cut off, too. If the client
    leaves, the request to the engine is cancelled.

    Args:
        url: of the engine.
        request: `state.came_ms` is when it came, Unix time in ms.

    Raises:
        RequestError: the target of the request is no path.
        NotSentError: the engine cannot be reached.
        EngineUnavailableError: the engine went before its answer began.
        DeadlineExceededError: the answer had not begun by the timeout that the client gave.
    """
    target, timeout, begun = _target(url, request), _timeout_of(request), False
    timeout_s = None if timeout is None else int(timeout) / 1e3 + _SLACK_S
    try:
        async with until_departure(request):
            async with (
                asyncio.timeout(timeout_s) as limit,
                http.request(
                    request.method,
                    target,
                    data=body or None,
                    headers=_headers_for_engine(request, timeout),
                    skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
                    allow_redirects=False,
                    timeout=_CONNECT_TIMEOUT,
                ) as response,
            ):
                limit.reschedule(None)
                begun = True
                await _relay(response, target, send)
            await send({"type": "http.response.body", "body": b""})
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise NotSentError(f"Engine {url} cannot be reached ({error}).") from error
    except TimeoutError as error:
        raise DeadlineExceededError(
            f"Engine {url} did not answer by the deadline of the request."
        ) from error
    except (aiohttp.ClientError, ConnectionError) as error:
        why = f"Engine {url} has gone ({type(error).__name__}: {error})."
        if not begun:
            raise EngineUnavailableError(why) from error
        logger.warning("%s The answer that it had begun is cut off.", why)


async def _relay(response: aiohttp.ClientResponse, target: URL, send: Send) -> None:
    """Send an answer on as it comes, but for its end."""
    headers = [
        (name, _redirect(value, target) if name == b"location" else value)
        for name, value in ((name.lower(), value) for name, value in response.raw_headers)
        if name not in _WRITTEN_HERE
    ]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    async for chunk in response.content.iter_any():
        await send({"type": "http.response.body", "body": chunk, "more_body": True})


def _headers_for_engine(request: Request, timeout: str | None) -> list[tuple[str, str]]:
    """The headers of a request that are handed on, with this timeout if there is one."""
    dropped = _HANDLED if timeout is None else _HANDLED | {TIMEOUT_HEADER.encode()}
    headers = [
        (name.decode("latin-1"), _text(value))
        for name, value in request.headers.raw
        if name.lower() not in dropped
    ]
    return headers if timeout is None else [*headers, (TIMEOUT_HEADER, timeout)]


def _text(value: bytes) -> str:
    """A header's value as aiohttp takes it, which sends it in UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _target(url: str, request: Request) -> URL:
    """The URL to ask at the engine. No path that a client sends can change its host.

    Raises:
        RequestError: the path does not begin with a slash.
    """
    scope = request.scope
    path = scope.get("raw_path") or scope["path"].encode()
    if not path.startswith(b"/"):
        raise RequestError(f"{path!r:.80} is no path. Ask for one that begins with a slash.")
    query = b"?" + scope["query_string"] if scope["query_string"] else b""
    return URL(url + (path + query).decode("latin-1"), encoded=True)


def _redirect(location: bytes, target: URL) -> bytes:
    """Where an engine redirects to; at its own address, which clients need not reach, the path."""
    scheme, _, rest = location.partition(b"://")
    host, _, path = rest.partition(b"/")
    is_own = host.decode("latin-1").lower() == (target.host_port_subcomponent or "").lower()
    if scheme not in (b"http", b"https") or not is_own or path.startswith(b"/"):
        return location
    return b"/" + path


def _timeout_of(request: Request) -> str | None:
    """Milliseconds left for the answer to begin, as the header for the engine.

    None without a timeout, or if a header is wrong, which the engine refuses.
    """
    try:
        options = options_of(request.headers, request.state.came_ms)
    except RequestError:
        return None
    return headers_from(options).get(TIMEOUT_HEADER)

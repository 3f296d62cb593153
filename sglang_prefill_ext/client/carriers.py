"""Carries a request to a server by HTTP, or to front ends by gRPC.

Both clients share the carriers. A call of a blocking client returns when it is answered, so a
coroutine that makes such calls waits for nothing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from inspect import isawaitable
from typing import Any

import grpc
import httpx

from sglang_prefill_ext.client import exchange
from sglang_prefill_ext.client.grpc_calls import error_of, grpc_call
from sglang_prefill_ext.client.kinds import checked
from sglang_prefill_ext.client.options import Deadline, Options
from sglang_prefill_ext.client.requests import AnswerT, Request
from sglang_prefill_ext.errors import ConfigError, UnexpectedAnswerError
from sglang_prefill_ext.frontend.options import ARRAYS_HEADER, authorization
from sglang_prefill_ext.grpc_frontend.prefill_pb2_grpc import PrefillStub
from sglang_prefill_ext.grpc_frontend.settings import is_loopback

_TLS = "grpcs"
_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),  # the server limits the size of answers
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 30_000),  # so that calls under way notice a host that is gone
    ("grpc.keepalive_timeout_ms", 20_000),
)


class HttpCarrier:
    """Asks by HTTP, with either kind of httpx client."""

    def __init__(self, http: httpx.Client | httpx.AsyncClient, base_url: str) -> None:
        self._http = http
        self._base_url = base_url
        self._arrays = False  # until the server says that it reads them
        self.close: Callable[[], Any]
        self.close = http.aclose if isinstance(http, httpx.AsyncClient) else http.close

    async def ask(self, request: Request[AnswerT], options: Options, deadline: Deadline) -> AnswerT:
        """Ask once; the errors are those of `PrefillClient`."""

        async def post(arrays: bool) -> httpx.Response:
            arguments = exchange.arguments(request, options, deadline, arrays=arrays)
            posted = self._http.post(**arguments)
            return await posted if isawaitable(posted) else posted

        arrays = self._arrays
        with exchange.transport_errors(request, self._base_url):
            response = await post(arrays)
            reads_arrays = ARRAYS_HEADER in response.headers
            if arrays and not reads_arrays and response.status_code == httpx.codes.BAD_REQUEST:
                # A server that does not read arrays may have replaced the one that did.
                self._arrays = False
                response = await post(arrays=False)
        self._arrays |= ARRAYS_HEADER in response.headers
        return exchange.answer_to(request, response)


class GrpcCarrier:
    """Asks gRPC front ends.

    Args:
        kind: the module whose channels are used, `grpc` or `grpc.aio`.
        base_url: ``grpc://host:port``, or ``grpcs://`` for TLS.
        credentials: of TLS; None trusts the authorities that gRPC knows.

    Raises:
        ConfigError: the address names no host, or has a path; or it has a user name or a password,
            which gRPC would take for a part of the host name.
    """

    def __init__(
        self,
        kind: Any,
        base_url: str,
        api_key: str | None,
        credentials: grpc.ChannelCredentials | None,
    ) -> None:
        address = base_url.partition("://")[2].rstrip("/")
        if "@" in address:
            raise ConfigError(
                f"base_url: {exchange.without_secrets(base_url)} contains a name or password, "
                "which gRPC cannot send. Leave them out, and give the token as api_key."
            )
        url = exchange.address_of(base_url)
        if url.raw_path.strip(b"/"):
            raise ConfigError(
                f"base_url: {base_url} has more than a host and a port, which gRPC cannot reach. "
                "Leave the rest out."
            )
        self._metadata = tuple(authorization(api_key).items())
        tls = url.scheme == _TLS
        if self._metadata and not tls and not is_loopback(url.host):
            warnings.warn(
                f"api_key goes to {url.host} in the clear. Use {_TLS}://, unless others protect "
                "the way.",
                stacklevel=3 + (kind is grpc.aio),  # its client has one more constructor
            )
        if tls:
            if credentials is not None:
                checked("credentials", credentials, grpc.ChannelCredentials, ConfigError)
            trusted = credentials or grpc.ssl_channel_credentials()
            channel = kind.secure_channel(address, trusted, _CHANNEL_OPTIONS)
        else:
            channel = kind.insecure_channel(address, _CHANNEL_OPTIONS)
        self._stub = PrefillStub(channel)  # type: ignore[no-untyped-call]
        self.close = channel.close

    async def ask(self, request: Request[AnswerT], options: Options, deadline: Deadline) -> AnswerT:
        """Ask once; the errors are those of `PrefillClient`."""
        left_s = exchange.require_time(request, options, deadline)
        name, message, read = grpc_call(request, options)
        method = getattr(self._stub, name)
        timeout_s = left_s if left_s < math.inf else None
        try:
            answer = method(message, timeout=timeout_s, metadata=self._metadata)
            if isawaitable(answer):
                answer = await answer
        except grpc.RpcError as error:
            raise error_of(request.asked, error) from error
        try:
            found: AnswerT = read(answer, request.items)
        except ValueError as error:
            raise UnexpectedAnswerError(
                f"{request.asked}: the answer cannot be read ({error}). Items with different "
                "numbers of labels are one such case: ask for them in separate calls."
            ) from error
        return found

"""What carries requests to gRPC front ends: for threads, and for asyncio."""

from __future__ import annotations

import math
import warnings
from typing import Any

import grpc

from sglang_prefill_ext.client.exchange import authorization, require_time, without_secrets
from sglang_prefill_ext.client.grpc_calls import GrpcCall, error_of, grpc_call
from sglang_prefill_ext.client.options import Deadline, Options
from sglang_prefill_ext.client.requests import AnswerT, Request
from sglang_prefill_ext.errors import ConfigError, UnexpectedAnswerError
from sglang_prefill_ext.grpc_frontend.prefill_pb2_grpc import PrefillStub
from sglang_prefill_ext.grpc_frontend.settings import is_loopback

_TLS = "grpcs://"
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),  # how large an answer may be is the server's affair
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 30_000),  # of calls under way; a host that vanished is noticed
    ("grpc.keepalive_timeout_ms", 20_000),
)


class GrpcCarrier:
    """Asks gRPC front ends, from any thread.

    Args:
        base_url: ``grpc://host:port``, or ``grpcs://`` for TLS.
        credentials: of TLS; None trusts the authorities that gRPC knows.
    """

    def __init__(
        self, base_url: str, api_key: str | None, credentials: grpc.ChannelCredentials | None
    ) -> None:
        self._metadata = _metadata(base_url, api_key)
        self._channel = _channel(grpc, base_url, credentials)
        self._stub = PrefillStub(self._channel)  # type: ignore[no-untyped-call]

    def ask(self, request: Request[AnswerT], options: Options, deadline: Deadline) -> AnswerT:
        """Ask once; the errors are those of `PrefillClient`."""
        timeout_s = _timeout_s(request, options, deadline)
        call = grpc_call(request, options)
        ask = getattr(self._stub, call.method)
        try:
            answer = ask(call.message, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise error_of(request.asked, error) from error
        return _read(request, call, answer)

    def close(self) -> None:
        self._channel.close()


class AsyncGrpcCarrier:
    """`GrpcCarrier` for the tasks of one event loop."""

    def __init__(
        self, base_url: str, api_key: str | None, credentials: grpc.ChannelCredentials | None
    ) -> None:
        self._metadata = _metadata(base_url, api_key)
        self._channel = _channel(grpc.aio, base_url, credentials)
        self._stub = PrefillStub(self._channel)  # type: ignore[no-untyped-call]

    async def ask(self, request: Request[AnswerT], options: Options, deadline: Deadline) -> AnswerT:
        """Ask once; the errors are those of `PrefillClient`."""
        timeout_s = _timeout_s(request, options, deadline)
        call = grpc_call(request, options)
        ask = getattr(self._stub, call.method)
        try:
            answer = await ask(call.message, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise error_of(request.asked, error) from error
        return _read(request, call, answer)

    async def close(self) -> None:
        await self._channel.close()


def _metadata(base_url: str, api_key: str | None) -> tuple[tuple[str, str], ...]:
    metadata = tuple(authorization(api_key).items())
    host = _address(base_url).rpartition(":")[0]
    if metadata and not base_url.startswith(_TLS) and not is_loopback(host):
        warnings.warn(
            f"api_key goes to {host} in the clear. Use {_TLS}, unless others protect the way.",
            stacklevel=4,
        )
    return metadata


def _channel(kind: Any, base_url: str, credentials: grpc.ChannelCredentials | None) -> Any:
    """A channel of the module `kind`, `grpc` or `grpc.aio`."""
    address = _address(base_url)
    if not base_url.startswith(_TLS):
        return kind.insecure_channel(address, _OPTIONS)
    return kind.secure_channel(address, credentials or grpc.ssl_channel_credentials(), _OPTIONS)


def _address(base_url: str) -> str:
    """Host and port.

    Raises:
        ConfigError: it holds a name or a password, which gRPC would look up as a part of the host.
    """
    address = base_url.partition("://")[2].rstrip("/")
    if "@" in address:
        raise ConfigError(
            f"base_url: {without_secrets(base_url)} is behind a name or password, which gRPC does "
            "not know. Leave them out, and give the token as api_key."
        )
    return address


def _timeout_s(request: Request[Any], options: Options, deadline: Deadline) -> float | None:
    left_s = require_time(request, options, deadline)
    return left_s if left_s < math.inf else None


def _read(request: Request[AnswerT], call: GrpcCall, answer: Any) -> AnswerT:
    try:
        found: AnswerT = call.read(answer, request.items)
    except ValueError as error:
        raise UnexpectedAnswerError(
            f"{request.asked}: the answer cannot be read ({error}). Items with different numbers "
            "of labels are one such case: ask for them in separate calls."
        ) from error
    return found

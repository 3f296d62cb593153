"""Turns settings into gRPC's server options and credentials, and checks bearer tokens."""

from __future__ import annotations

import hmac
import re
import ssl
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc

from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.frontend.options import key_in
from sglang_prefill_ext.grpc_frontend.settings import Compression, Listening

ALGORITHMS = {
    Compression.NONE: grpc.Compression.NoCompression,
    Compression.DEFLATE: grpc.Compression.Deflate,
    Compression.GZIP: grpc.Compression.Gzip,
}
_MOST_PINGS_MS = 10_000  # clients may ping this often without a call; gRPC's own limit is 5 minutes
_PING_TIMEOUT_MS = 20_000
_TOKEN = re.compile("[!-~]+")


def server_options(settings: Listening) -> list[tuple[str, Any]]:
    """Return options of a gRPC server."""
    most = settings.most_bytes
    options = [
        ("grpc.so_reuseport", 1),
        ("grpc.max_receive_message_length", most),
        ("grpc.max_send_message_length", most),
        ("grpc.http2.min_ping_interval_without_data_ms", _MOST_PINGS_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        # Further calls wait in the client.
        ("grpc.max_concurrent_streams", settings.max_calls),
    ]
    if settings.max_connection_age_s:
        options.append(("grpc.max_connection_age_ms", settings.max_connection_age_s * 1000))
    if settings.keepalive_s:
        options += [
            ("grpc.keepalive_time_ms", settings.keepalive_s * 1000),
            ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
        ]
    return options


def credentials(settings: Listening) -> grpc.ServerCredentials | None:
    """Return what TLS needs; None without TLS.

    Raises:
        ConfigError: a file cannot be read, or does not hold what it should.
    """
    if settings.tls_key is None or settings.tls_cert is None:
        return None
    ca = settings.client_ca
    authorities = None if ca is None else _read(ca, "--client-ca")
    pair = (_read(settings.tls_key, "--tls-key"), _read(settings.tls_cert, "--tls-cert"))
    _check_pem(settings.tls_cert, settings.tls_key, ca)
    return grpc.ssl_server_credentials([pair], authorities, ca is not None)


def bearer_tokens(settings: Listening) -> list[str]:
    """Return the tokens; a client has to show one of them, or none if there are none.

    Raises:
        ConfigError: the file cannot be read, holds none, or something that is none.
    """
    if settings.tokens is None:
        return []
    text = _read(settings.tokens, "--tokens").decode(errors="replace")
    tokens = [line.strip() for line in text.splitlines() if line.strip()]
    if not tokens:
        raise ConfigError(f"--tokens: {settings.tokens} holds no token. Write one per line.")
    if not all(map(_TOKEN.fullmatch, tokens)):
        raise ConfigError(
            f"--tokens: {settings.tokens} has a line that is no token. Write one per line, of "
            "visible ASCII without spaces, and nothing else."
        )
    return tokens


def _check_pem(cert: Path, key: Path, ca: Path | None) -> None:
    """Check the files with OpenSSL, because gRPC only reports that it could not listen."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password="")  # else it would ask the terminal for one
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--tls-cert, --tls-key: {cert} and {key} are no certificate with its key ({error}). "
            "Give PEM files that belong together, the key without a password."
        ) from error
    try:
        if ca is not None:
            context.load_verify_locations(ca)
    except OSError as error:
        raise ConfigError(
            f"--client-ca: {ca} holds no certificate ({error}). Give a PEM file."
        ) from error


def _read(path: Path, flag: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{flag}: {path} cannot be read ({error.strerror}).") from error


_OPEN = "/grpc.health.v1.Health/Check"
"""The method that needs no token, for load balancers. `Watch` needs one: it lasts as long as a
client likes."""


class BearerAuth(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Refuses calls without one of the tokens (`authorization: Bearer <token>`)."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._expected = [token.encode() for token in tokens]

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        if details.method == _OPEN or self._knows(details.invocation_metadata):
            return await continuation(details)
        return _REFUSED

    def _knows(self, metadata: Sequence[tuple[str, str | bytes]]) -> bool:
        shown = [value for name, value in metadata if name == "authorization"]
        if len(shown) != 1:
            return False
        (value,) = shown
        given = key_in(value if isinstance(value, str) else value.decode(errors="replace"))
        # All are compared, in constant time, so that nothing is learnt from how long it takes.
        return any([hmac.compare_digest(given, token) for token in self._expected])  # noqa: C419


async def _refuse(_requests: Any, context: Any) -> None:
    await context.abort(
        grpc.StatusCode.UNAUTHENTICATED,
        "No valid bearer token. Send the metadata `authorization: Bearer <token>`.",
    )


# On the wire all methods are streams, so this one refuses every kind of call without reading it.
_REFUSED = grpc.stream_stream_rpc_method_handler(_refuse)

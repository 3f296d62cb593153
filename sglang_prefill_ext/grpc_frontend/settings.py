"""How gRPC front ends listen and whom they let in."""

from __future__ import annotations

from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path

import msgspec

from sglang_prefill_ext.errors import ConfigError


class Compression(StrEnum):
    """How answers are compressed; requests may come in any of these ways."""

    NONE = "none"
    DEFLATE = "deflate"
    GZIP = "gzip"


class Listening(msgspec.Struct, frozen=True, kw_only=True):
    """How a gRPC server listens, and whom it lets in.

    Secrets are in files; these are only the paths.

    Attributes:
        tls_key, tls_cert: PEM files of the server; both or none.
        client_ca: PEM file with the authorities whose clients are let in (mTLS).
        tokens: file with bearer tokens, one a line; a client shows one of them.
        max_message_mib: size of the largest request or answer.
        keepalive_s: idle seconds after which a connection is checked; 0: never.
        max_calls: most calls under way in one front end, health checks included; more are refused.
        max_connection_age_s: seconds, more or less by 10%, after which clients are asked to connect
            anew; 0: never. Calls under way may finish.
        grace_s: seconds for calls under way when a front end goes down.
    """

    host: str = "127.0.0.1"
    port: int = 50051
    tls_key: Path | None = None
    tls_cert: Path | None = None
    client_ca: Path | None = None
    tokens: Path | None = None
    max_message_mib: int = 64
    keepalive_s: int = 60
    max_calls: int = 1024
    max_connection_age_s: int = 3600
    compression: Compression = Compression.NONE
    reflection: bool = True
    grace_s: float = 10.0

    def __post_init__(self) -> None:
        if (self.tls_key is None) != (self.tls_cert is None):
            raise ConfigError("--tls-key and --tls-cert belong together. Give both, or none.")
        if self.client_ca is not None and self.tls_key is None:
            raise ConfigError("--client-ca needs TLS. Give --tls-key and --tls-cert as well.")

    @property
    def most_bytes(self) -> int:
        """Size of the largest request or answer."""
        return self.max_message_mib << 20


class Settings(Listening, frozen=True, kw_only=True):
    """What every front end of one supervisor has in common.

    Attributes:
        attach: socket file of the engine.
    """

    attach: Path

    def to_json(self) -> str:
        return msgspec.json.encode(self, enc_hook=str).decode()

    @classmethod
    def from_json(cls, text: str) -> Settings:
        return msgspec.json.decode(text, type=cls, dec_hook=lambda kind, value: kind(value))


def is_loopback(host: str) -> bool:
    """Whether traffic to a host stays on this machine; of names, only localhost is known to."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"

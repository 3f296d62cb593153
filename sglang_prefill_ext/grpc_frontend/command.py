"""`sglang-prefill serve-grpc`: gRPC front ends for a running engine."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Annotated

import typer

from sglang_prefill_ext.attach.address import engine_at
from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.grpc_frontend import transport
from sglang_prefill_ext.grpc_frontend.settings import Compression, Settings, is_loopback
from sglang_prefill_ext.process.children import module_command
from sglang_prefill_ext.process.ports import joined, reserved
from sglang_prefill_ext.process.supervisor import supervise

logger = logging.getLogger(__name__)

_DEFAULTS = Settings(attach=Path())
_LONGEST_S = 1_000_000  # gRPC has 31 bits for milliseconds


def serve_grpc(
    attach: Annotated[
        Path, typer.Option(help="Socket file that the engine has in --prefill-only-attach.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen at.")] = _DEFAULTS.host,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen at; 0 takes a free one.")
    ] = _DEFAULTS.port,
    processes: Annotated[int, typer.Option(min=1, help="Number of front-end processes.")] = 2,
    tls_key: Annotated[
        Path | None, typer.Option(help="PEM file with the private key; turns TLS on.")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="PEM file with the certificate chain.")
    ] = None,
    client_ca: Annotated[
        Path | None,
        typer.Option(help="PEM file with authorities; only their clients are let in (mTLS)."),
    ] = None,
    tokens: Annotated[
        Path | None, typer.Option(help="File with bearer tokens, one per line.")
    ] = None,
    max_message_mib: Annotated[
        int, typer.Option(min=1, max=2047, help="Largest request or answer, in MiB.")
    ] = _DEFAULTS.max_message_mib,
    keepalive_s: Annotated[
        int,
        typer.Option(
            min=0, max=_LONGEST_S, help="Idle seconds after which a connection is tested; 0: never."
        ),
    ] = _DEFAULTS.keepalive_s,
    max_calls: Annotated[
        int,
        typer.Option(
            min=1, max=1_000_000, help="Most calls under way in a front end; more are refused."
        ),
    ] = _DEFAULTS.max_calls,
    max_connection_age_s: Annotated[
        int,
        typer.Option(
            min=0, max=_LONGEST_S, help="Seconds after which clients must connect again; 0: never."
        ),
    ] = _DEFAULTS.max_connection_age_s,
    compression: Annotated[
        Compression, typer.Option(help="Compression of answers.")
    ] = _DEFAULTS.compression,
    reflection: Annotated[
        bool, typer.Option(help="List the methods to clients.")
    ] = _DEFAULTS.reflection,
    grace_s: Annotated[
        float,
        typer.Option(min=0, max=_LONGEST_S, help="Seconds that running calls get on SIGTERM."),
    ] = _DEFAULTS.grace_s,
) -> None:
    """Serve the gRPC API prefill_ext.v1 for a running engine, in separate processes."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s serve-grpc: %(message)s")
    files = {
        "--tls-key": tls_key,
        "--tls-cert": tls_cert,
        "--client-ca": client_ca,
        "--tokens": tokens,
    }
    for flag, file in files.items():
        if file is not None and not file.is_file():
            raise ConfigError(f"{flag}: {file} is not a file. Give the path of one.")
    engine = engine_at(attach)
    with reserved(host, port) as taken:
        settings = Settings(
            attach=engine,
            host=host,
            port=taken,
            tls_key=tls_key,
            tls_cert=tls_cert,
            client_ca=client_ca,
            tokens=tokens,
            max_message_mib=max_message_mib,
            keepalive_s=keepalive_s,
            max_calls=max_calls,
            max_connection_age_s=max_connection_age_s,
            compression=compression,
            reflection=reflection,
            grace_s=grace_s,
        )
        transport.credentials(settings)  # what no front end could use is said once, here
        transport.bearer_tokens(settings)
        if tokens and not tls_key and not is_loopback(host):
            logger.warning(
                "Clients send tokens to %s in the clear. Give --tls-key and --tls-cert, unless "
                "something else encrypts the connection.",
                host,
            )
        logger.info("Listening at %s; front ends: %d.", joined(host, taken), processes)
        command = module_command("sglang_prefill_ext.grpc_frontend.servicer", settings.to_json())
        asyncio.run(supervise(command, processes, grace_s=grace_s))

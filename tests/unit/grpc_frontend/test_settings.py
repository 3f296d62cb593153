from __future__ import annotations

from pathlib import Path

import grpc
import pytest
import trustme

from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.grpc_frontend import transport
from sglang_prefill_ext.grpc_frontend.settings import Compression, Settings, is_loopback

PEM = {"tls_key": Path("key.pem"), "tls_cert": Path("cert.pem")}


def settings(**given: object) -> Settings:
    return Settings(attach=Path("engine.sock"), **given)  # type: ignore[arg-type]


def test_settings_travel_as_json() -> None:
    sent = settings(**PEM, tokens=Path("t"), compression=Compression.GZIP, port=0, grace_s=1.5)
    assert Settings.from_json(sent.to_json()) == sent
    assert Settings.from_json(settings().to_json()) == settings()


@pytest.mark.parametrize("given", [{"tls_key": Path("k")}, {"tls_cert": Path("c")}])
def test_a_key_needs_a_certificate(given: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="--tls-key and --tls-cert belong together"):
        settings(**given)


def test_client_authorities_need_tls() -> None:
    with pytest.raises(ConfigError, match="--client-ca needs TLS"):
        settings(client_ca=Path("ca.pem"))


def test_limits_become_options_of_grpc() -> None:
    options = dict(transport.server_options(settings(max_message_mib=3, keepalive_s=7)))
    assert options["grpc.max_receive_message_length"] == 3 << 20
    assert options["grpc.max_send_message_length"] == 3 << 20
    assert options["grpc.keepalive_time_ms"] == 7000
    assert options["grpc.so_reuseport"] == 1
    assert "grpc.keepalive_time_ms" not in dict(transport.server_options(settings(keepalive_s=0)))


def test_calls_and_connections_are_bounded() -> None:
    options = dict(transport.server_options(settings()))
    assert options["grpc.max_concurrent_streams"] == settings().max_calls == 1024
    assert options["grpc.max_connection_age_ms"] == 3_600_000
    without = dict(transport.server_options(settings(max_connection_age_s=0)))
    assert "grpc.max_connection_age_ms" not in without


def test_what_stays_on_this_machine_needs_no_warning() -> None:
    for host in ("localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]"):
        assert is_loopback(host)
    for host in ("0.0.0.0", "::", "192.0.2.1", "unix-of-another-host", "localhost.example"):
        assert not is_loopback(host)


def test_every_compression_is_known_to_grpc() -> None:
    assert list(Compression) == ["none", "deflate", "gzip"]
    assert transport.ALGORITHMS.keys() == set(Compression)
    assert transport.ALGORITHMS[settings().compression] is grpc.Compression.NoCompression


def test_tokens_come_from_a_file(tmp_path: Path) -> None:
    assert transport.bearer_tokens(settings()) == []
    file = tmp_path / "tokens"
    with pytest.raises(ConfigError, match=r"--tokens: .* cannot be read"):
        transport.bearer_tokens(settings(tokens=file))
    file.write_text(" \n")
    with pytest.raises(ConfigError, match="holds no token"):
        transport.bearer_tokens(settings(tokens=file))
    for wrong in (b"# of team a\none\n", b"one two\n", "ключ\n".encode(), b"\xff\xfe"):
        file.write_bytes(wrong)
        with pytest.raises(ConfigError, match="has a line that is no token"):
            transport.bearer_tokens(settings(tokens=file))
    file.write_text("one \n\n two\n")
    assert transport.bearer_tokens(settings(tokens=file)) == ["one", "two"]


def test_tls_reads_its_files(tmp_path: Path) -> None:
    assert transport.credentials(settings()) is None
    given = settings(tls_key=tmp_path / "key.pem", tls_cert=tmp_path / "cert.pem")
    with pytest.raises(ConfigError, match="cannot be read"):
        transport.credentials(given)
    issued = trustme.CA().issue_cert("localhost")
    issued.private_key_pem.write_to_path(str(given.tls_key))
    issued.cert_chain_pems[0].write_to_path(str(given.tls_cert))
    assert isinstance(transport.credentials(given), grpc.ServerCredentials)

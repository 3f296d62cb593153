from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
import trustme
from typer.testing import CliRunner

from sglang_prefill_ext import cli
from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.grpc_frontend import command
from sglang_prefill_ext.grpc_frontend.settings import Compression, Settings
from sglang_prefill_ext.process.ports import free_port


@pytest.fixture
def supervised(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Settings, int]]:
    """The calls of the supervisor, which is replaced and starts nothing."""
    asked: list[tuple[Settings, int]] = []

    async def note(started: list[str], processes: int, *, grace_s: float) -> None:
        await asyncio.sleep(0)
        settings = Settings.from_json(started[-1])
        assert grace_s == settings.grace_s
        asked.append((settings, processes))

    monkeypatch.setattr(command, "supervise", note)
    return asked


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A usable file for each flag that takes one."""
    authority = trustme.CA()
    server = authority.issue_cert("localhost")
    files = {name: tmp_path / name for name in ("tls-key", "tls-cert", "client-ca", "tokens")}
    server.private_key_pem.write_to_path(files["tls-key"])
    server.cert_chain_pems[0].write_to_path(files["tls-cert"])
    authority.cert_pem.write_to_path(files["client-ca"])
    files["tokens"].write_text("secret")
    return files


def test_flags_become_settings(
    supervised: list[tuple[Settings, int]], files: dict[str, Path]
) -> None:
    flags = [f"--{name}={file}" for name, file in files.items()]
    flags += ["--attach=/run/engine.sock", "--processes=3", "--max-message-mib=5"]
    flags += [
        "--host=localhost",
        f"--port={(port := free_port())}",
        "--max-calls=7",
        "--max-connection-age-s=0",
    ]
    flags += ["--keepalive-s=0", "--compression=gzip", "--no-reflection", "--grace-s=1.5"]
    run = CliRunner().invoke(cli.app, ["serve-grpc", *flags])
    assert run.exit_code == 0, run.output
    ((settings, processes),) = supervised
    assert processes == 3
    assert settings == Settings(
        attach=Path("/run/engine.sock"),
        host="localhost",
        port=port,
        tls_key=files["tls-key"],
        tls_cert=files["tls-cert"],
        client_ca=files["client-ca"],
        tokens=files["tokens"],
        max_message_mib=5,
        keepalive_s=0,
        max_calls=7,
        max_connection_age_s=0,
        compression=Compression.GZIP,
        reflection=False,
        grace_s=1.5,
    )


def test_defaults_are_those_of_the_settings(supervised: list[tuple[Settings, int]]) -> None:
    run = CliRunner().invoke(cli.app, ["serve-grpc", "--attach=/x", "--port=0"])
    assert run.exit_code == 0, run.output
    ((settings, _),) = supervised
    assert settings == Settings(attach=Path("/x"), port=settings.port)
    assert settings.port > 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tls-key", "--tls-cert, --tls-key: .* are no certificate with its key"),
        ("client-ca", "--client-ca: .* holds no certificate"),
        ("tokens", "--tokens: .* holds no token"),
    ],
)
def test_a_file_that_no_front_end_could_use_is_refused(
    supervised: list[tuple[Settings, int]], files: dict[str, Path], name: str, words: str
) -> None:
    files[name].write_text("\n")
    flags = [f"--{name}={file}" for name, file in files.items()]
    run = CliRunner().invoke(cli.app, ["serve-grpc", "--attach=/x", "--port=0", *flags])
    assert isinstance(run.exception, ConfigError)
    assert re.search(words, str(run.exception))
    assert not supervised


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--tokens=/missing"], "--tokens: /missing is not a file"),
        (["--tls-cert=/missing"], "--tls-cert: /missing is not a file"),
        (["--client-ca=/missing"], "--client-ca: /missing is not a file"),
        (["--tls-key=/dev/null/x"], "--tls-key: /dev/null/x is not a file"),
        (["--host=192.0.2.1"], "cannot be used"),
    ],
)
def test_what_cannot_work_is_said_before_anything_starts(
    supervised: list[tuple[Settings, int]], flags: list[str], words: str
) -> None:
    run = CliRunner().invoke(cli.app, ["serve-grpc", "--attach=/x", "--port=0", *flags])
    assert isinstance(run.exception, ConfigError)
    assert words in str(run.exception)
    assert not supervised


@pytest.mark.parametrize("attach", ["", "notes.txt", "folder", "notes.txt/engine.sock"])
def test_what_is_no_engine_is_not_waited_for(
    supervised: list[tuple[Settings, int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    attach: str,
) -> None:
    (tmp_path / "notes.txt").write_text("precious")
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke(cli.app, ["serve-grpc", f"--attach={attach}", "--port=0"])
    assert isinstance(run.exception, ConfigError)
    assert re.match(r"--attach: \S+ (is not a socket|cannot be created)", str(run.exception))
    assert not supervised


def test_an_engine_that_starts_later_makes_its_folder(
    supervised: list[tuple[Settings, int]], tmp_path: Path
) -> None:
    attach = tmp_path / "folder" / "engine.sock"
    run = CliRunner().invoke(cli.app, ["serve-grpc", f"--attach={attach}", "--port=0"])
    assert run.exit_code == 0, run.output
    assert [settings.attach for settings, _ in supervised] == [attach]
    assert not attach.parent.exists()


@pytest.mark.parametrize(
    "flag",
    [
        "--port=70000",
        "--keepalive-s=2592000",
        "--max-connection-age-s=2592000",
        "--max-calls=2147483648",
        "--grace-s=inf",
    ],
)
def test_numbers_that_no_front_end_could_start_with_are_refused(
    supervised: list[tuple[Settings, int]], flag: str
) -> None:
    run = CliRunner().invoke(cli.app, ["serve-grpc", "--attach=/x", "--port=0", flag])
    assert run.exit_code == 2
    assert flag.split("=")[0] in run.output
    assert not supervised


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
@pytest.mark.parametrize("tls", [True, False])
def test_tokens_in_the_clear_are_warned_of(
    supervised: list[tuple[Settings, int]],
    files: dict[str, Path],
    caplog: pytest.LogCaptureFixture,
    host: str,
    tls: bool,
) -> None:
    flags = [f"--{name}={files[name]}" for name in ("tls-key", "tls-cert") if tls]
    flags += [f"--tokens={files['tokens']}", f"--host={host}"]
    run = CliRunner().invoke(cli.app, ["serve-grpc", "--attach=/x", "--port=0", *flags])
    assert run.exit_code == 0, run.output
    assert len(supervised) == 1
    assert ("in the clear" in caplog.text) == (host == "0.0.0.0" and not tls)

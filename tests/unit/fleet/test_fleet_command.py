"""`sglang-prefill fleet` refuses wrong options before anything starts."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from sglang_prefill_ext import cli
from sglang_prefill_ext.errors import ClusterError, ConfigError
from sglang_prefill_ext.fleet import command, server
from sglang_prefill_ext.fleet.ray_serve import cluster, run
from sglang_prefill_ext.fleet.settings import Settings

MODEL = "--model-path=/no/model"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "either --engines"),
        (["--engines=http://a:1", MODEL], "either --engines"),
        (["--engines=http://a:1", "--tp-size", "2"], "--tp-size: no such option"),
        (["--engine=http://a:1"], "--engine: no such option"),
        (["--engines=http://a:1", "--replicas=2"], "--replicas: it is about engines on Ray"),
        (["--engines=http://a:1", "--drain-s", "60.0"], "--drain-s: it is about engines on Ray"),
        (["--engines=nothing"], "no URL"),
        (["--engines=http://a:1", "--api-key=key\n"], "perhaps a line end at its end"),
        ([MODEL, "--api-key=clé"], "api_key: it contains characters"),
        ([MODEL, "--replicas=many"], "--replicas 'many'"),
        ([MODEL, "--replicas=0"], "--replicas 0: it ends the fleet of a cluster that runs"),
        ([MODEL, "--address=auto", "--port=0"], "--port 0"),
    ],
)
def test_flags_that_say_nothing_are_refused(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], words: str
) -> None:
    monkeypatch.setattr(run, "_checked", lambda launch: None)
    outcome = CliRunner().invoke(cli.app, ["fleet", *flags])
    assert isinstance(outcome.exception, ConfigError), outcome.output
    assert words in str(outcome.exception)


@pytest.mark.parametrize("flag", ["--grace-s=inf", "--extra-work=inf", f"--keep-alive-s={10**20}"])
def test_numbers_that_do_not_travel_to_routers_are_refused(flag: str) -> None:
    outcome = CliRunner().invoke(cli.app, ["fleet", "--engines=http://a:1", flag])
    assert outcome.exit_code == 2
    assert flag.split("=")[0] in outcome.output


def test_idle_connections_stay_for_as_long_as_those_of_sglangs_servers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Settings] = []
    monkeypatch.setattr(server, "find_spec", lambda _: None)  # or every server here has a limit
    monkeypatch.setattr(command, "_over_running", lambda settings, *_: told.append(settings))
    for seconds in ("7", "0"):
        monkeypatch.setenv("SGLANG_TIMEOUT_KEEP_ALIVE", seconds)
        outcome = CliRunner().invoke(cli.app, ["fleet", "--engines=http://a:1"])
    assert outcome.exit_code == 2, "the last one is refused"
    assert "SGLANG_TIMEOUT_KEEP_ALIVE" in outcome.output
    (settings,) = told
    assert settings.keep_alive_s == 7
    assert server._config(_nothing, settings).timeout_keep_alive == 7


async def _nothing(*_: object) -> None:
    pass


def test_without_ray_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if ".fleet.ray_serve" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delattr("sglang_prefill_ext.fleet.ray_serve.run")
    outcome = CliRunner().invoke(cli.app, ["fleet", MODEL])
    assert isinstance(outcome.exception, ConfigError)
    assert "pip install 'sglang-prefill-ext[fleet]'" in str(outcome.exception)


def test_a_cluster_that_nobody_has_is_an_error_at_once() -> None:
    with pytest.raises(ClusterError, match=r"--address 127\.0\.0\.1:9"):
        cluster.connected("127.0.0.1:9").__enter__()


def test_an_error_ends_the_command_without_a_traceback() -> None:
    code = "from sglang_prefill_ext.cli import main; main()"
    command = [sys.executable, "-c", code, "fleet", MODEL, "--replicas=x"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "error: --replicas 'x'" in done.stderr
    assert "Traceback" not in done.stderr

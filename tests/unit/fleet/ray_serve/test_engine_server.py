"""The server of an engine on Ray against a stand-in of SGLang."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from sglang_prefill_ext.fleet.ray_serve.engine import TetheredServer
from sglang_prefill_ext.fleet.ray_serve.launch import Launch
from tests.integration.support.client import wait_until

STAND_IN = """
import json, os, sys
from pathlib import Path
command, variables = Path("/proc/self/cmdline").read_text().split(chr(0)), dict(os.environ)
print(json.dumps([__name__, command, sys.argv, variables]))
"""


@pytest.mark.parametrize(("key", "added"), [("-secret", ["--api-key=-secret"]), ("", [])])
def test_sglang_gets_the_key_and_no_list_of_processes_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, added: list[str]
) -> None:
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "launch_server.py").write_text(STAND_IN)
    (tmp_path / "sglang" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # for its log
    server = TetheredServer(Launch("model", ("--tp-size", "2"), key), "127.0.0.1")
    server.start()
    wait_until(lambda: not server.running)
    name, command, argv, variables = json.loads(server.log_path.read_text())
    assert name == "__main__"
    assert argv[1:] == command[command.index("--model-path") : -1] + added
    assert argv[-2 - len(added) :] == ["--tp-size", "2", *added]
    shown = [*command, *server.command, *variables.values()]
    assert {"-secret", "--api-key=-secret"}.isdisjoint(shown)
    server.stop()

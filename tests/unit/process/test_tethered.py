from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_prefill_ext.process.children import module_command
from tests.integration.client import wait_until

PARENT = """
import subprocess, sys
from sglang_prefill_ext.process.tethered import tethered
child = subprocess.Popen(tethered([sys.executable, *sys.argv[1:]]), stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
"""
CHILD = "print('ready', flush=True); import time; time.sleep(600)"


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_command_ends_with_who_started_it(end: signal.Signals) -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", PARENT, "-c", CHILD]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert alive(child)
        parent.send_signal(end)
        parent.wait()
    wait_until(lambda: not alive(child))


def test_a_command_does_not_start_where_its_parent_has_gone(tmp_path: Path) -> None:
    module = "sglang_prefill_ext.process.tethered"
    made = tmp_path / "made"
    code = f"open({str(made)!r}, 'w')"
    subprocess.run(module_command(module, "1", sys.executable, "-c", code), check=True)
    assert not made.exists()

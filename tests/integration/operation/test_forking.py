"""Servers of these tests are forked after imports; they must start as usual servers do."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from sglang_prefill_ext.local_server.environment import server_env
from tests.forking.launch import ForkedPopen
from tests.forking.process import adopting
from tests.integration.support.client import wait_until

pytestmark = pytest.mark.timeout(900)

REPORT = """
import json, multiprocessing, os, random, sys

def report():
    plugins = sys.modules["sglang.srt.plugins"]
    return {
        "pid": os.getpid(), "parent": os.getppid(), "session": os.getsid(0), "cwd": os.getcwd(),
        "argv": sys.argv, "name": __name__, "said": os.environ.get("PREFILL_ONLY_SAID"),
        "imported": "sglang.srt.managers.scheduler" in sys.modules, "number": random.random(),
        "plugins_loaded": plugins._plugins_loaded, "main_is": sys.modules["__main__"].__name__,
        "cores": [*os.sched_getaffinity(0)],
    }

def child(pipe):
    pipe.send(report())

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    sys.modules["sglang.srt.plugins"]._plugins_loaded = True  # which no other process must see
    os.environ["PREFILL_ONLY_SAID"] += " to a child"
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    process = context.Process(target=child, args=(theirs,))
    process.start()
    print(json.dumps([report(), ours.recv()]))
    process.join()
    print(process.exitcode == 0, file=sys.stderr)
    sys.exit(7)
"""


def started(*command: str, **how: Any) -> subprocess.Popen[bytes]:
    return ForkedPopen([sys.executable, *command], stdout=subprocess.PIPE, **how)


def test_a_module_runs_as_the_interpreter_would_run_it(tmp_path: Path) -> None:
    (tmp_path / "reporting.py").write_text(REPORT)
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    env = server_env({"PREFILL_ONLY_SAID": "hello", "PYTHONPATH": path})
    with started(
        *("-m", "reporting", "an argument"),
        env=env,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        output, errors = process.communicate(timeout=300)
    parent, child = json.loads(output)
    assert errors.split() == [b"True"]
    assert process.returncode == 7
    assert parent["parent"] == os.getpid()
    assert parent["pid"] == process.pid == parent["session"] == child["session"] == child["parent"]
    assert parent["argv"][1:] == child["argv"][1:] == ["an argument"]
    assert [one["said"] for one in (parent, child)] == ["hello to a child"] * 2
    assert [one["name"] for one in (parent, child)] == ["__main__", "__mp_main__"]
    assert [one["main_is"] for one in (parent, child)] == ["__main__", "__mp_main__"]
    assert all(one["imported"] and one["cwd"] == str(tmp_path) for one in (parent, child))
    assert [one["plugins_loaded"] for one in (parent, child)] == [True, False]
    assert parent["number"] != child["number"]
    assert parent["cores"] == child["cores"] == [max(os.sched_getaffinity(0))]


@pytest.mark.parametrize("starter", [signal.SIG_IGN, signal.SIG_DFL])
def test_sigquit_is_ignored_by_what_is_started_by_a_process_that_ignores_it(
    starter: signal.Handlers,
) -> None:
    """A shell script starts commands with ``&`` so. Children of one that handles it end by it."""
    seen = """
import multiprocessing, signal
def by_a_child():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(signal.getsignal, (signal.SIGQUIT,)).name
print(signal.getsignal(signal.SIGQUIT).name, by_a_child())
signal.signal(signal.SIGQUIT, print)
print(by_a_child())
"""
    before = signal.signal(signal.SIGQUIT, starter)
    try:
        process = started("-c", seen, env=server_env())
    finally:
        signal.signal(signal.SIGQUIT, before)
    with process:
        output, _ = process.communicate(timeout=300)
    assert output.decode().split() == [starter.name, starter.name, "SIG_DFL"]


def test_what_ends_all_of_its_children_can_start_others() -> None:
    """SGLang's engine does so when it shuts down."""
    imported = "import sys; print('sglang.srt.managers.scheduler' in sys.modules)"
    code = (
        "import multiprocessing, psutil\n"
        "for child in psutil.Process().children(recursive=True):\n"
        "    child.kill()\n"
        f"args = ({imported!r},)\n"
        "process = multiprocessing.get_context('spawn').Process(target=exec, args=args)\n"
        "process.start()\n"
        "process.join()\n"
    )
    with started("-c", code, env=server_env()) as process:
        output, _ = process.communicate(timeout=300)
    assert output.split() == [b"True"]


def test_it_can_be_ended_by_a_signal_and_leaves_nobody() -> None:
    waits = "import time; print('here', flush=True); time.sleep(600)"
    with started("-c", waits, env=server_env()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        (helper,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        ended = os.pidfd_open(int(helper))
        process.terminate()
        assert process.wait(60) == -signal.SIGTERM
    assert select.select([ended], [], [], 60)[0]
    os.close(ended)


def test_modules_are_imported_with_the_environment_of_the_command(tmp_path: Path) -> None:
    code = "import os; from huggingface_hub import constants; print(constants.HF_HOME, os.getpid())"
    with started("-c", code, env=server_env({"HF_HOME": str(tmp_path)})) as process:
        output, _ = process.communicate(timeout=300)
    assert output.split() == [str(tmp_path).encode(), str(process.pid).encode()]


def test_what_loses_its_parent_while_another_process_is_adopted_is_waited_for() -> None:
    shell = ["sh", "-c", "sleep 600 & echo $!; wait"]
    with subprocess.Popen(shell, stdout=subprocess.PIPE, start_new_session=True) as parent:
        assert parent.stdout is not None
        orphan = int(parent.stdout.readline())
        with adopting():
            parent.kill()
            parent.wait()
        assert psutil.Process(orphan).ppid() == os.getpid()
        os.kill(orphan, signal.SIGKILL)
        wait_until(lambda: not psutil.pid_exists(orphan))

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bench.cores import is_scheduler, scheduler_apart
from sglang_prefill_ext.errors import ConfigError

WAITING = "print(flush=True); input()"


def waiting(name: str) -> subprocess.Popen[bytes]:
    """A Python process that waits for its input to end, under another name.

    It has said that it runs: between fork and exec a process has no command line yet.
    """
    process = subprocess.Popen(
        [name, "-c", WAITING],
        executable=sys.executable,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_the_scheduler_gets_a_core_and_the_others_the_rest() -> None:
    usable = os.sched_getaffinity(0)
    first, *others = sorted(usable)
    with waiting("sglang::scheduler") as scheduler, waiting("sglang::detokenizer") as other:
        assert [is_scheduler(each.pid) for each in (scheduler, other)] == [True, False]
        with scheduler_apart([scheduler.pid, other.pid]):
            assert os.sched_getaffinity(scheduler.pid) == {first}
            assert os.sched_getaffinity(other.pid) == os.sched_getaffinity(0) == set(others)
        assert os.sched_getaffinity(0) == usable
        for process in (scheduler, other):
            process.kill()


def test_one_core_cannot_be_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    with pytest.raises(ConfigError, match="Two cores"), scheduler_apart([]):
        pass

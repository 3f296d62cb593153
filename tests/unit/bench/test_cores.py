from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from bench.cores import is_scheduler, kept_awake, scheduler_apart
from sglang_prefill_ext.errors import ConfigError

WAITING = "print(flush=True); input()"


def waiting(name: str) -> subprocess.Popen[bytes]:
    """A Python process that waits for its input to end, under another name.

    It has reported that it runs, because between fork and exec it has no command line yet.
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


def test_cores_are_kept_awake_while_the_limit_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "cpu_dma_latency"
    monkeypatch.setattr("bench.cores._SLEEP_LIMIT", limit)
    with kept_awake(True):
        (held,) = [fd for fd in Path("/proc/self/fd").iterdir() if is_link_to(fd, limit)]
        assert limit.read_bytes() == struct.pack("i", 0)
    assert not is_link_to(held, limit)


def test_who_may_not_keep_cores_awake_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.cores._SLEEP_LIMIT", tmp_path / "missing" / "cpu_dma_latency")
    with pytest.raises(ConfigError, match=r"--awake: .*cpu_dma_latency"), kept_awake(True):
        pass
    with kept_awake(False):
        assert not list(tmp_path.iterdir())


def is_link_to(link: Path, target: Path) -> bool:
    return link.exists() and link.resolve() == target

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from sglang_prefill_ext.process.stages import STARTUP, Startup


def clock(monkeypatch: pytest.MonkeyPatch, *times: float) -> None:
    """The Unix times that the next calls return."""
    told = iter(times)
    monkeypatch.setattr("sglang_prefill_ext.process.stages.time.time", lambda: next(told))


def test_each_stage_begins_where_the_one_before_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, 12.5, 13.0, 13.0)
    startup = Startup(lambda: 10.0)
    for stage in ("imports", "patches", "model"):
        startup.mark(stage)
    assert startup.as_dict() == {"imports": 2.5, "patches": 0.5, "model": 0.0, "total": 3.0}


def test_a_stage_that_comes_again_counts_its_first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, 11.0, 14.0)
    startup = Startup(lambda: 10.0)
    startup.mark("patches")
    startup.mark("patches")
    startup.mark("model")
    assert startup.as_dict() == {"patches": 1.0, "model": 3.0, "total": 4.0}


def test_a_clock_that_was_set_back_gives_no_negative_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, 9.0)
    startup = Startup(lambda: 10.0)
    startup.mark("imports")
    assert startup.as_dict()["imports"] == 0.0


def test_the_log_has_every_stage(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    startup = Startup(lambda: 10.0)
    with monkeypatch.context() as set_to:
        clock(set_to, 12.0)
        startup.mark("imports")
    with caplog.at_level(logging.INFO):
        startup.log("scheduler")
    assert "start of the scheduler: imports 2.0 s, total 2.0 s" in caplog.text


def age_s() -> float:
    """Seconds since this process began, by the clock that counts from the boot."""
    of_process = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    began_s = int(of_process[19]) / os.sysconf("SC_CLK_TCK")
    return float(Path("/proc/uptime").read_text().split()[0]) - began_s


def test_the_first_stage_of_this_process_began_with_it() -> None:
    startup = Startup(STARTUP._begun_s)
    startup.mark("imports")
    # The time of the boot is known to a second.
    assert startup.as_dict()["total"] == pytest.approx(age_s(), abs=1.5)

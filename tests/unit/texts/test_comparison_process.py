"""Tests of the real process that compares encodings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil
import pytest

from sglang_prefill_ext.config import TokenizerChoice
from sglang_prefill_ext.texts import comparison_process
from sglang_prefill_ext.texts.comparison_process import (
    NotComparedError,
    compare_here,
    compare_in_child,
)
from sglang_prefill_ext.texts.libraries import LIBRARIES
from tests.unit.texts.made import json_of

FASTOKENS = TokenizerChoice.FASTOKENS
ENDLESS = 10**7
OWNER = f"""
from sglang_prefill_ext.texts.comparison_process import compare_in_child
from tests.unit.texts.made import json_of
import threading
compare = threading.Thread(target=compare_in_child, args=("fastokens", json_of("gpt2"), {ENDLESS}))
compare.start()
"""


def children(process: psutil.Process) -> list[psutil.Process]:
    """The comparing processes among the descendants of a process."""
    found = []
    for each in process.children():
        with suppress(psutil.NoSuchProcess):  # has ended; other tests may have left one
            if comparison_process.__name__ in each.cmdline():
                found.append(each)
    return found


@pytest.fixture
def leaves_none() -> Iterator[None]:
    """Check that no child of the test is left, not even a zombie."""
    before = set(psutil.Process().children())
    yield
    assert set(psutil.Process().children()) <= before


def until(found: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.usefixtures("leaves_none")
def test_a_child_gives_the_same_verdict() -> None:
    for library in LIBRARIES:
        args = (library, json_of("gpt2"), 2_000)
        found, wanted = compare_in_child(*args), compare_here(*args)
        assert (found.difference, found.texts) == (wanted.difference, wanted.texts) == ("", 2_000)
    assert compare_in_child(FASTOKENS, "{}", 10).difference.startswith("not loaded")


def test_a_child_is_asked_without_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    assert compare_in_child(FASTOKENS, json_of("gpt2"), 10).texts == 10


@pytest.mark.usefixtures("leaves_none")
def test_a_child_does_not_tell_more_than_a_pipe_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries quote what they do not know."""
    monkeypatch.setattr(comparison_process, "LONGEST_S", 60.0)
    unknown = json.loads(json_of("gpt2")) | {"normalizer": {"type": "X" * (1 << 17)}}
    assert "unsupported" in compare_in_child(FASTOKENS, json.dumps(unknown), 10).difference


@pytest.mark.usefixtures("leaves_none")
def test_a_child_that_is_killed_gives_no_verdict_and_is_no_zombie() -> None:
    caught: list[BaseException] = []

    def compare() -> None:
        with pytest.raises(NotComparedError, match="-9") as error:
            compare_in_child(FASTOKENS, json_of("gpt2"), ENDLESS)
        caught.append(error.value)

    thread = threading.Thread(target=compare)
    thread.start()
    until(lambda: children(psutil.Process()))
    (child,) = children(psutil.Process())
    child.kill()
    thread.join(60)
    assert len(caught) == 1


def test_a_child_that_cannot_be_started_gives_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(NotComparedError, match="nowhere"):
        compare_in_child(FASTOKENS, json_of("gpt2"), 10)


@pytest.mark.usefixtures("leaves_none")
def test_a_child_that_takes_too_long_gives_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison_process, "LONGEST_S", 0.01)
    with pytest.raises(NotComparedError, match="it took longer than"):
        compare_in_child(FASTOKENS, json_of("gpt2"), ENDLESS)


def test_a_child_that_reads_nothing_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question is larger than the buffer of a pipe."""
    deaf = [sys.executable, "-c", "pass"]
    monkeypatch.setattr(comparison_process, "module_command", lambda *_: deaf)
    with pytest.raises(NotComparedError, match="status 0"):
        compare_in_child(FASTOKENS, " " * (1 << 20), 10)


@pytest.mark.parametrize("kill", [False, True], ids=["ends", "is killed"])
def test_a_child_ends_with_its_parent(kill: bool) -> None:
    # Killed while its main thread is there; else that ends at once, which the other must notice.
    owner = subprocess.Popen((sys.executable, "-c", OWNER + ("compare.join()" if kill else "")))
    if kill:
        until(lambda: children(psutil.Process(owner.pid)))
        (child,) = children(psutil.Process(owner.pid))
        os.kill(owner.pid, signal.SIGKILL)
        until(lambda: not child.is_running())
    assert owner.wait(60) == (-signal.SIGKILL if kill else 0)

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sglang_prefill_ext.texts import comparison_file
from sglang_prefill_ext.texts.comparison import Comparison
from sglang_prefill_ext.texts.comparison_file import key_of, processor, remembered

WAITER = """
import sys, threading
from pathlib import Path
from sglang_prefill_ext.texts.comparison_file import remembered
threading.Thread(target=remembered, args=(Path(sys.argv[1]), "k", None)).start()
"""


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def forbidden() -> Comparison:
    raise AssertionError("there is a comparison")


def test_a_verdict_is_made_once(tmp_path: Path) -> None:
    comparison = Comparison("'a'", 3, 0.5)
    assert remembered(tmp_path / "new", "k", lambda: comparison) == comparison
    assert remembered(tmp_path / "new", "k", forbidden) == comparison
    assert remembered(tmp_path / "new", "other", lambda: Comparison("")).difference == ""


def test_what_cannot_be_read_is_judged_again(tmp_path: Path) -> None:
    (tmp_path / "k.json").write_text("{half")
    assert remembered(tmp_path, "k", lambda: Comparison("", 1)).texts == 1
    assert remembered(tmp_path, "k", forbidden).texts == 1


def test_without_a_directory_nothing_is_remembered(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for texts in (1, 2):
        assert remembered(tmp_path / "file", "k", lambda n=texts: Comparison("", n)).texts == texts


def test_of_several_processes_one_judges(tmp_path: Path) -> None:
    begun, go, compared = threading.Event(), threading.Event(), []

    def compare() -> Comparison:
        compared.append(1)
        begun.set()
        assert go.wait(60)
        return Comparison("")

    threads = [threading.Thread(target=remembered, args=(tmp_path, "k", compare)) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert begun.wait(60)
    go.set()
    for thread in threads:
        thread.join(60)
    assert compared == [1]


def test_the_directory_and_what_is_in_it_are_the_owners_alone(tmp_path: Path) -> None:
    directory = tmp_path / "cache" / "tokenizers"
    remembered(directory, "k", lambda: Comparison(""))
    assert mode_of(directory) == mode_of(directory.parent) == 0o700
    assert {mode_of(each) for each in directory.iterdir()} == {0o600}
    directory.chmod(0o777)
    remembered(directory, "k", forbidden)
    assert mode_of(directory) == 0o700


def test_nothing_is_believed_in_a_directory_of_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered(tmp_path, "k", lambda: Comparison("planted"))
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    assert remembered(tmp_path, "k", lambda: Comparison("compared")).difference == "compared"


@pytest.mark.parametrize("suffix", ["json", "lock", "part"])
def test_no_link_is_followed(tmp_path: Path, suffix: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text('{"difference": "planted"}')
    before = precious.read_bytes()
    (tmp_path / f"k.{suffix}").symlink_to(precious)
    assert remembered(tmp_path, "k", lambda: Comparison("compared")).difference == "compared"
    assert precious.read_bytes() == before


def test_a_judge_that_fails_is_not_asked_again(tmp_path: Path) -> None:
    asked: list[int] = []

    def compare() -> Comparison:
        asked.append(1)
        raise OSError("no memory")

    with pytest.raises(OSError, match="no memory"):
        remembered(tmp_path, "k", compare)
    assert asked == [1]


def test_a_verdict_that_cannot_be_kept_counts_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "replace", lambda *_: os.stat("/nowhere"))
    assert remembered(tmp_path, "k", lambda: Comparison("", 5)).texts == 5


def test_who_waits_for_a_judge_that_hangs_judges_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison_file, "LONGEST_S", 0.01)
    with (tmp_path / "k.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert remembered(tmp_path, "k", lambda: Comparison("", 3)).texts == 3


def test_who_waits_for_a_judge_keeps_no_process_from_ending(tmp_path: Path) -> None:
    with (tmp_path / "k.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run = subprocess.run([sys.executable, "-c", WAITER, tmp_path], timeout=60, check=False)
    assert run.returncode == 0


def test_a_failure_leaves_no_verdict(tmp_path: Path) -> None:
    def ends() -> Comparison:
        raise SystemExit

    with pytest.raises(SystemExit):
        remembered(tmp_path, "k", ends)
    assert remembered(tmp_path, "k", lambda: Comparison("", 7)).texts == 7


def test_a_key_names_the_tokenizer_and_every_version() -> None:
    keys = {key_of(*each) for each in (("a",), ("b",), ("a", "1"), ("a", "1", "2"), ("a", "12"))}
    assert len(keys) == 5


def test_a_processor_is_known_by_what_it_can_do() -> None:
    assert processor() == processor()
    assert len(processor()) > 10

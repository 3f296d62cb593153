from __future__ import annotations

import threading
from pathlib import Path

import pytest

from sglang_prefill_ext.tokenization.gate import Verdict
from sglang_prefill_ext.tokenization.verdicts import cache_directory, key_of, remembered


def forbidden() -> Verdict:
    raise AssertionError("there is a verdict")


def test_a_verdict_is_made_once(tmp_path: Path) -> None:
    verdict = Verdict("'a'", 3, 0.5)
    assert remembered(tmp_path / "new", "k", lambda: verdict) == verdict
    assert remembered(tmp_path / "new", "k", forbidden) == verdict
    assert remembered(tmp_path / "new", "other", lambda: Verdict("")).passed


def test_what_cannot_be_read_is_judged_again(tmp_path: Path) -> None:
    (tmp_path / "k.json").write_text("{half")
    assert remembered(tmp_path, "k", lambda: Verdict("", 1)).texts == 1
    assert remembered(tmp_path, "k", forbidden).texts == 1


def test_without_a_directory_nothing_is_remembered(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for texts in (1, 2):
        assert remembered(tmp_path / "file", "k", lambda n=texts: Verdict("", n)).texts == texts


def test_of_several_processes_one_judges(tmp_path: Path) -> None:
    begun, go, judged = threading.Event(), threading.Event(), []

    def judge() -> Verdict:
        judged.append(1)
        begun.set()
        assert go.wait(10)
        return Verdict("")

    threads = [threading.Thread(target=remembered, args=(tmp_path, "k", judge)) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert begun.wait(10)
    go.set()
    for thread in threads:
        thread.join(10)
    assert judged == [1]


def test_a_failure_leaves_no_verdict(tmp_path: Path) -> None:
    def ends() -> Verdict:
        raise SystemExit

    with pytest.raises(SystemExit):
        remembered(tmp_path, "k", ends)
    assert remembered(tmp_path, "k", lambda: Verdict("", 7)).texts == 7


def test_a_key_names_the_tokenizer_and_every_version() -> None:
    keys = {key_of(*each) for each in (("a",), ("b",), ("a", "1"), ("a", "1", "2"), ("a", "12"))}
    assert len(keys) == 5


def test_the_directory_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "sglang-prefill-ext" / "tokenizers"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_directory().is_relative_to(Path.home() / ".cache")

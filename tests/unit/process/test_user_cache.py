from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from sglang_prefill_ext.process.user_cache import cache_directory


def test_the_directory_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory("tokenizers") == tmp_path / "sglang-prefill-ext" / "tokenizers"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_directory("tokenizers").is_relative_to(Path.home() / ".cache")


def test_a_user_without_a_home_has_a_directory_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # it raises `KeyError` for all users
    assert cache_directory("tokenizers") == Path("~/.cache/sglang-prefill-ext/tokenizers")

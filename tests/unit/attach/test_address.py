from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from sglang_prefill_ext.attach.address import checked_path, claim, owner_only
from sglang_prefill_ext.errors import ConfigError

FLAG = "--attach"


def test_a_path_becomes_absolute_and_must_fit_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert checked_path("engine.sock", flag=FLAG) == tmp_path / "engine.sock"
    with pytest.raises(ConfigError, match=r"--attach: .* is longer than 107 bytes"):
        checked_path("/" + "é" * 60, flag=FLAG)


def test_a_missing_directory_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    claim(tmp_path / "private" / "engine.sock", flag=FLAG)
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o700


def test_another_engine_is_not_robbed_of_its_socket(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(ConfigError, match="--attach: another engine listens at"):
            claim(path, flag=FLAG)
    claim(path, flag=FLAG)  # it has gone and left its socket


def test_a_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="is not a socket"):
        claim(path, flag=FLAG)


def test_what_is_made_for_the_owner_only_is_closed_to_others(tmp_path: Path) -> None:
    with owner_only():
        (tmp_path / "inside").touch()
    (tmp_path / "after").touch()
    assert stat.S_IMODE((tmp_path / "inside").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "after").stat().st_mode) != 0o600


def test_where_nothing_can_be_made_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file cannot be made .*Choose another path"):
        claim(tmp_path / "file" / "engine.sock", flag=FLAG)
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    with pytest.raises(ConfigError, match="Choose a directory that you may write"):
        claim(tmp_path / "engine.sock", flag=FLAG)

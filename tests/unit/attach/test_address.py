from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import ExitStack
from pathlib import Path

import pytest

from sglang_prefill_ext.attach.address import (
    ENGINE_FLAG,
    checked_path,
    claim,
    engine_at,
    listening,
    require_private,
    stranger_at,
)
from sglang_prefill_ext.errors import ConfigError

FLAG = ENGINE_FLAG


def test_a_path_becomes_absolute_and_must_fit_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert checked_path("engine.sock", flag=FLAG) == tmp_path / "engine.sock"
    longest = "/" + "é" * 53
    assert len(os.fsencode(longest)) == 107
    assert checked_path(longest, flag=FLAG) == Path(longest)
    with pytest.raises(ConfigError, match=r"--prefill-only-attach: .* is longer than 107 bytes"):
        checked_path(longest + "e", flag=FLAG)


def test_a_missing_directory_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    private = tmp_path / "missing" / "private"
    claim(private / "engine.sock")
    assert stat.S_IMODE(private.stat().st_mode) == 0o700


def test_another_engine_is_not_robbed_of_its_socket(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(ConfigError, match="--prefill-only-attach: another engine listens at"):
            claim(path)
    with listening(path) as descriptor:  # it has gone and left its socket
        os.close(descriptor)


def test_an_engine_that_stands_still_keeps_its_socket_and_lets_nobody_wait(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as other, ExitStack() as waiting:
        other.bind(str(path))
        other.listen(0)
        for _ in range(5):  # more than can wait for it
            front_end = waiting.enter_context(socket.socket(socket.AF_UNIX))
            front_end.setblocking(False)
            front_end.connect_ex(str(path))
        with pytest.raises(ConfigError, match="another engine listens at"):
            claim(path)
        assert path.is_socket()


def test_the_socket_of_another_program_stays(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))
        with pytest.raises(ConfigError, match="Stop it, or choose another path"):
            claim(path)
        assert path.is_socket()


def test_an_engine_of_another_user_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "exists", refused)  # root may look anywhere
    with pytest.raises(ConfigError, match=r"--attach: .* \(Permission denied\).* as one user"):
        engine_at(tmp_path / "engine.sock")


def test_a_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="is not a socket"):
        claim(path)


def test_an_engine_is_a_socket_or_yet_to_come(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    assert engine_at(path) == path
    with listening(path) as descriptor, socket.socket(fileno=descriptor):
        assert engine_at(path) == path
    path.touch()
    with pytest.raises(ConfigError, match=r"--attach: .* is not a socket"):
        engine_at(path)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is not a socket"):
        claim(path)


def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    for mode in (0o777, 0o1777, 0o770):
        shared.chmod(mode)
        with pytest.raises(
            ConfigError, match=f"--prefill-only-attach: other users may write .*{mode:o}"
        ):
            claim(shared / "engine.sock")
        claim(shared / "own" / "engine.sock")
        assert "Other users may write" in stranger_at(shared / "own")
    shared.chmod(0o755)
    require_private(shared, flag=FLAG)


def test_a_directory_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list(tmp_path.stat())
    found[stat.ST_UID] = 12345
    monkeypatch.setattr(Path, "stat", lambda _path, **_how: os.stat_result(found))
    with pytest.raises(ConfigError, match=r"--prefill-only-attach: .* belongs to user"):
        require_private(tmp_path, flag=FLAG)
    found[stat.ST_UID] = 0  # root may do anything anyway
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    require_private(tmp_path, flag=FLAG)


def test_only_the_owner_may_connect_whatever_the_umask(tmp_path: Path) -> None:
    path, before = tmp_path / "engine.sock", os.umask(0)
    try:
        with listening(path) as descriptor, socket.socket(fileno=descriptor):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert os.umask(0) == 0
            assert stranger_at(path) == ""
            with socket.socket(socket.AF_UNIX) as front_end:
                front_end.connect(str(path))
    finally:
        os.umask(before)
    assert not path.exists()


def test_a_socket_of_somebody_else_or_none_is_a_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "engine.sock"
    assert "No such file" in stranger_at(path)
    with listening(path) as descriptor, socket.socket(fileno=descriptor):
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
        assert "Run engine and front ends as one user" in stranger_at(path)


def test_the_socket_of_a_successor_stays(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as successor:
        with listening(path) as descriptor, socket.socket(fileno=descriptor):
            path.unlink()
            successor.bind(str(path))
        assert path.is_socket()


def test_where_nothing_can_be_made_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file cannot be created .*Choose another path"):
        claim(tmp_path / "file" / "engine.sock")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    with pytest.raises(ConfigError, match="Choose a directory that you may write"):
        claim(tmp_path / "engine.sock")

from __future__ import annotations

import pytest

from sglang_prefill_ext.local_server.environment import server_env


def test_environment_lets_byte_code_be_cached_and_the_caller_win(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("FROM_PARENT", "kept")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    env = server_env({"OMP_NUM_THREADS": "3"})
    assert "PYTHONDONTWRITEBYTECODE" not in env
    assert env["FROM_PARENT"] == "kept"
    assert env["HF_HUB_OFFLINE"] == "1"
    assert env["OMP_NUM_THREADS"] == "3"
    assert server_env({"HF_HUB_OFFLINE": "0"})["HF_HUB_OFFLINE"] == "0"

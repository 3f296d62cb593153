from __future__ import annotations

import pytest

from sglang_prefill_ext.fleet import replica, replica_load


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine is late, or silent, because this process stood still."""
    monkeypatch.setattr(replica_load, "_GRACE_S", 60.0)
    monkeypatch.setattr(replica, "_STATE_TIMEOUT", replica._FIRST_STATE_TIMEOUT)

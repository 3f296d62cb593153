from __future__ import annotations

import pytest

from sglang_prefill_ext.fleet import replica, replica_load


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer limits, so that no engine counts as late or silent because this process was slow."""
    monkeypatch.setattr(replica_load, "_GRACE_S", 60.0)
    monkeypatch.setattr(replica, "_STATE_S", replica._FIRST_STATE_S)

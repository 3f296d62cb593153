from __future__ import annotations

import pytest

from sglang_prefill_ext.frontend import client_wait


@pytest.fixture(autouse=True)
def _quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at once whether a client is still connected, and often."""
    monkeypatch.setattr(client_wait, "_DISCONNECT_POLL_S", 0.001)

from __future__ import annotations

from pathlib import Path

import pytest

from bench.server import MeasuredServer
from sglang_prefill_ext.local_server import LocalServer


def test_a_measured_server_is_settled_once_it_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    done = []
    monkeypatch.setattr(LocalServer, "wait_ready", lambda *_args: done.append("ready") or 3.5)
    monkeypatch.setattr(LocalServer, "wait_settled", lambda *_args: done.append("settled"))
    assert MeasuredServer(Path("model"), []).wait_ready() == 3.5
    assert done == ["ready", "settled"]

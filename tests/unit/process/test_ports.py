from __future__ import annotations

import socket

import pytest

from sglang_prefill_ext.errors import ServerStartError
from sglang_prefill_ext.process import ports
from sglang_prefill_ext.process.ports import free_port


def test_free_port_can_be_bound() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))


def test_a_free_port_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(ports, "_PORTS", [port])
    monkeypatch.setattr(ports, "_PORT_TRIES", 1)
    with pytest.raises(ServerStartError, match="none of 1 ports is free"):
        free_port()

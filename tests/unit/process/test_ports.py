from __future__ import annotations

import socket
import threading
import time

import pytest

from sglang_prefill_ext.errors import ConfigError, ServerStartError
from sglang_prefill_ext.process import ports
from sglang_prefill_ext.process.ports import (
    await_listener,
    bound,
    free_port,
    joined,
    listener_at,
    reserved,
)


def test_free_port_can_be_bound() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))


def test_a_free_port_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(ports, "_PORTS", [port])
    monkeypatch.setattr(ports, "_PORT_TRIES", 1)
    with pytest.raises(ServerStartError, match="none of 1 ports is free"):
        free_port()


def test_a_port_that_something_listens_on_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind((ports.LOOPBACK, 0))
        listener.listen()
        monkeypatch.setattr(ports, "_PORTS", [listener.getsockname()[1]])
        monkeypatch.setattr(ports, "_PORT_TRIES", 1)
        with pytest.raises(ServerStartError, match="none of 1 ports is free"):
            free_port()


def test_a_listener_is_awaited() -> None:
    with socket.socket() as later:
        later.bind((ports.LOOPBACK, 0))
        port = later.getsockname()[1]
        begin_s = time.monotonic()
        assert not await_listener(ports.LOOPBACK, port, 0.1)
        timer = threading.Timer(0.1, later.listen)
        timer.start()
        assert await_listener(ports.LOOPBACK, port, 60.0)
        assert time.monotonic() - begin_s >= 0.2
        timer.join()


def test_a_port_is_kept_for_those_that_share_it() -> None:
    with reserved("127.0.0.1", 0) as port:
        with bound("127.0.0.1", port) as sharer:
            sharer.listen()
            with (
                pytest.raises(ConfigError, match=f"--port {port} cannot be used"),
                reserved("127.0.0.1", port),
            ):
                pass
        assert port > 0


def test_connections_that_end_keep_nobody_from_a_port() -> None:
    with reserved("127.0.0.1", 0) as port:
        listener = listener_at("127.0.0.1", port, 1)
        with listener, socket.create_connection(("127.0.0.1", port)) as client:
            listener.accept()[0].close()  # first, so it stays for a minute after the client's end
            assert client.recv(1) == b""
    with reserved("127.0.0.1", port) as again:
        assert again == port


@pytest.mark.parametrize("host", ["192.0.2.1", "127.0.0..1"])
def test_an_address_that_is_none_is_refused(host: str) -> None:
    with (
        pytest.raises(ConfigError, match=rf"--host {host} .*Choose another"),
        reserved(host, 0),
    ):
        pass


def test_an_ipv6_address_is_told_from_its_port() -> None:
    assert joined("::1", 80) == "[::1]:80"
    assert joined("a.example", 80) == "a.example:80"

"""Starts a cluster of Ray, or connects to one."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from sglang_prefill_ext.errors import ClusterError

_OWN_STORE_BYTES = 100 << 20  # requests do not go through Ray's objects
_CONNECT_S = 5.0


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect to a cluster; without an address, start one on this machine.

    Raises:
        ClusterError: there is none at the address.
    """
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
    try:
        if address:
            _require_listening(address)
            ray.init(address=address, **quiet)
        else:
            own = {"include_dashboard": False, "object_store_memory": _OWN_STORE_BYTES}
            ray.init(address="local", **own, **quiet)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        where = f"--address {address}" if address else "A cluster on this machine"
        raise ClusterError(
            f"{where}: no cluster of Ray can be reached ({error}). Start one with "
            "`ray start --head`, or leave --address out for one on this machine."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def node_resources() -> list[dict[str, float]]:
    """Resources of each node that is alive, by Ray's names."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


@contextmanager
def told_to_stop() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set."""
    stop, kinds = threading.Event(), (signal.SIGTERM, signal.SIGINT)
    before = {kind: signal.signal(kind, lambda *_: stop.set()) for kind in kinds}
    try:
        yield stop
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def _require_listening(address: str) -> None:
    """Raises: OSError: nobody listens there; Ray itself would try for a minute, and then abort."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S):
            pass

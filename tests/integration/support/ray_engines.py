"""Engines of a fleet on Ray whose processes are forked by the process of the test.

If Ray's actors started them, every engine would import SGLang in three processes. All else is as
for users: actors of Serve start, watch and stop the engines, and routers reach them by HTTP.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any, ClassVar

from sglang_prefill_ext.fleet.ray_serve.engine import EngineReplica
from sglang_prefill_ext.fleet.ray_serve.launch import Launch
from sglang_prefill_ext.local_server.environment import CPU_ARGS
from tests.forking.launch import ForkedServer
from tests.integration.support.own_server import LOGS

_ADDRESS = "PREFILL_ONLY_TEST_HOST"
_KEY = b"of this test"


class Hosted:
    """In the process of the test: starts an engine on behalf of an actor."""

    started: ClassVar[list[ForkedServer]] = []

    def __init__(self, launch: Launch, host: str) -> None:
        flags = (*CPU_ARGS, "--sleep-on-idle", "--enable-prefill-only", *launch.flags)
        log = LOGS / f"ray-{len(self.started)}.log"
        self._server = ForkedServer(launch.model_path, flags, host=host, log_path=log)
        self.started.append(self._server)

    def get_url(self) -> str:
        return self._server.base_url

    def is_running(self) -> bool:
        return self._server.running

    def call(self, method: str, *args: Any) -> Any:
        return getattr(self._server, method)(*args)


class _Manager(BaseManager):
    pass


_Manager.register("Hosted", Hosted)


class RemoteServer:
    """In the actor: takes the place of a `LocalServer`, and controls one that is `Hosted`."""

    def __init__(self, launch: Launch, host: str) -> None:
        manager = _Manager(os.environ[_ADDRESS], _KEY)
        manager.connect()
        self._hosted: Any = manager.Hosted(launch, host)  # type: ignore[attr-defined]
        self.base_url = self._hosted.get_url()

    @property
    def running(self) -> bool:
        return bool(self._hosted.is_running())

    def start(self) -> None:
        self._hosted.call("start")

    def wait_ready(self, timeout_s: float) -> None:
        self._hosted.call("wait_ready", timeout_s)

    def stop(self, grace_s: float) -> None:
        self._hosted.call("stop", grace_s)

    def log_tail(self) -> str:
        return str(self._hosted.call("log_tail"))


class HostedReplica(EngineReplica):
    _server_class = RemoteServer


@contextmanager
def hosting(directory: Path) -> Iterator[list[ForkedServer]]:
    """Start the engines of actors while inside; yields the list of all that were started."""
    address = str(directory / "host")
    server = _Manager(address, _KEY).get_server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ[_ADDRESS] = address
    try:
        yield Hosted.started
    finally:
        del os.environ[_ADDRESS]
        for each in Hosted.started:
            each.stop()

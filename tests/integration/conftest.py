"""Fixtures: a client of the shared server, its model as a reference, a port, a thread pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sglang_prefill_ext.local_server import LocalServer
from sglang_prefill_ext.process.ports import free_port
from tests.integration.support.client import Client
from tests.integration.support.own_server import client_of
from tests.integration.support.reference import Reference


@pytest.fixture(scope="session")
def client(server: LocalServer) -> Iterator[Client]:
    with client_of(server) as client:
        yield client


@pytest.fixture(scope="session")
def reference(model_dir: Callable[[str], Path]) -> Reference:
    """The model of the shared server in Hugging Face."""
    return Reference(model_dir("micro"))


@pytest.fixture(scope="module")
def grpc_port() -> int:
    """A port for the routers of a module, chosen right before they start."""
    return free_port()


@pytest.fixture
def pool(client: Client) -> Iterator[ThreadPoolExecutor]:
    """Threads for requests that the test does not wait for at once."""
    pool = ThreadPoolExecutor(max_workers=16)
    yield pool
    # If a test failed while generation was paused, its requests would never end.
    client.post("/continue_generation", {})
    pool.shutdown()

"""A client of the shared server, and the model behind it as a reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sglang_prefill_ext.local_server import LocalServer
from tests.integration.client import Client
from tests.integration.reference import Reference


@pytest.fixture(scope="session")
def client(server: LocalServer) -> Iterator[Client]:
    client = Client(server.base_url)
    with client.http:
        yield client


@pytest.fixture(scope="session")
def reference(model_dir: Callable[[str], Path]) -> Reference:
    """The model of the shared server in Hugging Face."""
    return Reference(model_dir("micro"))

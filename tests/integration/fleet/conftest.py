"""What the tests of routers over two engines share; each module starts engines of its own."""

from __future__ import annotations

import pytest

from tests.integration.support.client import Client
from tests.integration.support.own_server import Serving


@pytest.fixture(scope="module")
def one(engines: tuple[Serving, Serving]) -> Client:
    """A client of one of the module's two engines."""
    return engines[0].client

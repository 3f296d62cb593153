from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.unit.client.stand_in import StandIn


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with StandIn() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()

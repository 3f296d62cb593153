from __future__ import annotations

from functools import partial

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> CollectorRegistry:
    """A registry of its own, since a metric can be registered only once a process."""
    registry = CollectorRegistry()
    for name in ("Counter", "Gauge", "Histogram"):
        made = partial(getattr(prometheus_client, name), registry=registry)
        monkeypatch.setattr(prometheus_client, name, made)
    return registry

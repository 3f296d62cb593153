"""Fixtures that every test may use: cached models and the running servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from sglang_prefill_ext.local_server import LocalServer

# No deadline: how long an example takes says more about the machine than about the code.
settings.register_profile("default", deadline=None)
settings.load_profile("default")

CACHE = Path(__file__).parent.parent / ".cache"

# An idle scheduler polls at full speed unless told otherwise; other servers start beside it.
EXTENSION_FLAGS = (
    "--enable-prefill-only",
    "--prefill-only-max-items=400",
    "--enable-metrics",
    "--sleep-on-idle",
)


@pytest.fixture(scope="session")
def model_dir() -> Callable[[str], Path]:
    """Make a preset once; later runs find it in the cache."""
    from sglang_prefill_ext.modelmaker import make_model

    return lambda preset: make_model(preset, CACHE / "models" / preset)


@pytest.fixture(scope="session")
def server(model_dir: Callable[[str], Path]) -> Iterator[LocalServer]:
    """The shared server: the extension on the `micro` model, in the overlap event loop."""
    log = CACHE / "logs" / "server.log"
    with LocalServer(model_dir("micro"), EXTENSION_FLAGS, log_path=log) as running:
        yield running

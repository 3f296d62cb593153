"""Fixtures that every test may use: cached models and the running servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock
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

IN_FLIGHT = {"PREFILL_ONLY_TEST_IN_FLIGHT": "1"}
"""Has a server on the CPU collect forwards one step after their launch, as on CUDA."""


@pytest.fixture(scope="session")
def model_dir() -> Callable[[str], Path]:
    """Make a preset once; later runs, and other workers of this one, find it in the cache."""
    from sglang_prefill_ext.modelmaker import make_model

    def made(preset: str) -> Path:
        directory = CACHE / "models" / preset
        directory.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(directory.with_suffix(".lock")):
            return make_model(preset, directory)

    return made


@pytest.fixture(scope="session")
def server(model_dir: Callable[[str], Path], worker_id: str) -> Iterator[LocalServer]:
    """The shared server: the extension on the `micro` model, in the overlap event loop.

    Each worker of a run has its own. A forward is in flight between its iterations, as on CUDA.
    """
    log = CACHE / "logs" / f"server-{worker_id}.log"
    model = model_dir("micro")
    with LocalServer(model, EXTENSION_FLAGS, env=IN_FLIGHT, log_path=log) as running:
        yield running

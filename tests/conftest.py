"""Fixtures that every test may use: cached models and the running servers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import settings

from sglang_prefill_ext.local_server import LocalServer
from tests.forking.launch import ForkedServer

# No deadline: the time of an example depends on the machine more than on the code. The same
# examples in every run; `--hypothesis-profile=new` looks for others.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("new", deadline=None)
settings.load_profile("same")

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


TRACES = CACHE / "traces"
_IN_SERVERS = str(Path(__file__).parent / "integration" / "programs" / "in_servers")

# In all processes of these tests: one that imports SGLang forks all of them.
if _IN_SERVERS not in (_path := os.environ.get("PYTHONPATH", "")).split(os.pathsep):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_IN_SERVERS, _path)))


@pytest.fixture(scope="session")
def model_dir() -> Callable[[str], Path]:
    """Make the model of a preset once; later runs and other workers find it in the cache."""
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

    Each worker of a run has its own; that of the first is started as a user starts one, the others
    are forked. A forward is in flight between its iterations, as on CUDA. Its processes can record
    the calls that they make (`tests/integration/programs/in_servers`).
    """
    log = CACHE / "logs" / f"server-{worker_id}.log"
    model = model_dir("micro")
    TRACES.mkdir(parents=True, exist_ok=True)
    env = {**IN_FLIGHT, "PREFILL_ONLY_TEST_TRACES": str(TRACES)}
    kind = LocalServer if worker_id in ("master", "gw0") else ForkedServer
    with kind(model, EXTENSION_FLAGS, env=env, log_path=log) as running:
        yield running

"""Flags and environment variables of a server on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

CPU_ARGS = ("--device", "cpu", "--dtype", "float32", "--max-total-tokens", "131072")
"""Flags for a CPU: bf16 is slow there, and the default KV pool takes all memory."""

_ENV = {
    "HF_HUB_OFFLINE": "1",  # models are local; without network a look-up waits for its timeout
    "PYTHONUNBUFFERED": "1",  # the log must be complete when a start fails
}
_ACCELERATOR_NODES = ("nvidia[0-9]*", "kfd", "dxg")


def has_accelerator() -> bool:
    """Whether the kernel exposes an NVIDIA or AMD device; asks neither torch nor a driver."""
    return any(any(Path("/dev").glob(pattern)) for pattern in _ACCELERATOR_NODES)


def server_env(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a server: this process's, our defaults where unset, then `extra`.

    ``PYTHONDONTWRITEBYTECODE`` is dropped: three processes import thousands of modules, and
    without cached byte code each compiles them anew. On two cores, a start took 85 s of CPU time
    without it, and 36 s with it.
    """
    env = {**_ENV, **os.environ}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return {**env, **(extra or {})}

"""The directory in which processes keep what they would otherwise measure at every start."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory(kind: str) -> Path:
    """A directory below ``$XDG_CACHE_HOME``, or ``~/.cache``; it need not exist.

    A user without a home has it in the current directory, as Hugging Face's.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "sglang-prefill-ext" / kind

"""How this package starts Python modules in processes of their own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def module_command(module: str, *args: str) -> list[str]:
    """Return the command that runs a module as this process would.

    Python looks for modules in the current directory before all others, so that whoever may write
    there could have a `grpc.py` of his own imported. That is left out, unless this package itself
    is there, as in a source checkout.
    """
    return [sys.executable, *(() if _is_here(_ROOT) else ("-P",)), "-m", module, *args]


def _is_here(directory: Path) -> bool:
    try:
        return directory.samefile(os.curdir)
    except OSError:  # the current directory is there no more
        return False

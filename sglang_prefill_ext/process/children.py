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
    try:
        is_here = _ROOT.samefile(os.curdir)
    except OSError:  # the current directory is there no more
        is_here = False
    return [sys.executable, *(() if is_here else ("-P",)), "-m", module, *args]

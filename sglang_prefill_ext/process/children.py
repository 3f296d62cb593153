"""How this package starts Python modules in processes of their own.

``python -m sglang_prefill_ext.process.children PID COMMAND...`` is a command that ends with the
process of that id, which has started it: what an actor of Ray has started would else live on when
Ray kills the actor. The kernel ends the command, also where nobody is left to ask for it. Its own
children have to see to themselves, as SGLang's do.
"""

from __future__ import annotations

import ctypes
import os
import signal
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


_PR_SET_PDEATHSIG = 1


def tethered(command: list[str]) -> list[str]:
    """Return the command that runs another one for as long as this thread lives."""
    return module_command(__name__, str(os.getpid()), *command)


def main() -> None:
    parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == int(parent):  # else it has gone already
        os.execv(command[0], command)


if __name__ == "__main__":
    main()

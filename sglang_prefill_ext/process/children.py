"""Commands that start Python modules of this package in processes of their own.

``python -m sglang_prefill_ext.process.children PID COMMAND...`` runs a command that ends with its
parent, the process PID. Without that, a command that an actor of Ray has started would live on when
Ray kills the actor. The kernel kills the command, so no process has to be left to do it. The
command's own children have to end by themselves, as SGLang's do.
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

    By default Python looks for modules in the current directory first, so anybody who may write
    there could have another `grpc.py` imported. The option -P prevents that. It is left out if this
    package itself is in the current directory, as in a source checkout.
    """
    try:
        is_here = _ROOT.samefile(os.curdir)
    except OSError:  # the current directory does not exist any more
        is_here = False
    return [sys.executable, *(() if is_here else ("-P",)), "-m", module, *args]


_PR_SET_PDEATHSIG = 1


def tethered(command: list[str]) -> list[str]:
    """Return the command that runs another one for as long as this thread lives."""
    return module_command(__name__, str(os.getpid()), *command)


def main() -> None:
    parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == int(parent):  # otherwise the parent has gone already
        os.execv(command[0], command)


if __name__ == "__main__":
    main()

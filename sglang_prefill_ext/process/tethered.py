"""A command that ends with the process that started it: ``tethered PID COMMAND...``.

What an actor of Ray has started would else live on when Ray kills the actor. The kernel ends the
command, also where nobody is left to ask for it. Its own children have to see to themselves, as
SGLang's do.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from sglang_prefill_ext.process.children import module_command

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

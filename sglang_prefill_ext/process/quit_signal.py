"""Leaves SIGQUIT to SGLang where uvicorn supervises several workers.

SGLang sends it to the launching process when a child has failed, and ends the server upon it. With
``--tokenizer-worker-num``, uvicorn would put a handler of its own in place of SGLang's, which does
nothing. If a scheduler died, the server would live on, and no call would ever be answered.
"""

from __future__ import annotations

import signal

from uvicorn.supervisors import multiprocess


def leave_quit_signal() -> None:
    """Take SIGQUIT from the signals that uvicorn's supervisor in this process is to handle."""
    multiprocess.SIGNALS.pop(signal.SIGQUIT, None)

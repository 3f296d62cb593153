"""Compares a library with Hugging Face's in a process of its own: ``python -m`` this module.

A comparison takes seconds. A library may hold the interpreter lock while it loads a large
vocabulary or encodes, so in the server's own process nothing else would run meanwhile.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import msgspec

from sglang_prefill_ext.config import TokenizerChoice
from sglang_prefill_ext.process.children import module_command, tethered
from sglang_prefill_ext.texts import libraries, sample_texts
from sglang_prefill_ext.texts.comparison import Comparison, compare, told
from sglang_prefill_ext.texts.libraries import TokenizerCopy
from sglang_prefill_ext.texts.settings import added_tokens, settings_of

_LOOK_S = 0.2
"""How often the child is looked at."""

LONGEST_S = 600.0
"""Limit for a comparison, which takes seconds unless the library hangs."""

_NICENESS = 10
"""Added to the child's niceness, so that requests come first where cores are few."""


class NotComparedError(Exception):
    """The child has ended without a comparison."""


def compare_here(library: TokenizerChoice, json: str, count: int) -> Comparison:
    """Compare a library with Hugging Face's.

    Args:
        json: of the tokenizer.
        count: texts to compare.
    """
    try:
        encoder = libraries.load(library, json)
    except Exception as error:  # whatever a library raises for a tokenizer that it does not know
        return Comparison(f"not loaded: {told(error)}")
    texts = sample_texts.texts(count, added_tokens(settings_of(json)))
    return compare(encoder, TokenizerCopy(json), texts)


def compare_in_child(library: TokenizerChoice, json: str, count: int) -> Comparison:
    """As `compare_here`, in another process, which does not outlive this one.

    Raises:
        NotComparedError: that process could not be started, was killed, crashed or took too long.
        SystemExit: this process is about to end.
    """
    command = tethered(module_command(__name__, library, str(count)))
    # Writing to a pipe would block if the child did not read; a disk may be full or read-only.
    with open(os.memfd_create("tokenizer"), "w+b") as question:
        question.write(json.encode())
        question.seek(0)
        try:
            child = subprocess.Popen(command, stdin=question, stdout=subprocess.PIPE)
        except OSError as error:
            raise NotComparedError(str(error)) from error
        with child:
            answer = _answer_of(child)
    try:
        return msgspec.json.decode(answer, type=Comparison)
    except msgspec.DecodeError as error:
        raise NotComparedError(f"its process ended with status {child.returncode}") from error


def _answer_of(child: subprocess.Popen[bytes]) -> bytes:
    assert child.stdout is not None, "it is a pipe"
    latest_s = time.monotonic() + LONGEST_S
    try:
        while child.poll() is None:
            if time.monotonic() > latest_s:
                raise NotComparedError(f"it took longer than {LONGEST_S:g} s")
            wait_a_little()
    finally:
        child.kill()  # without effect on one that has ended
    return child.stdout.read()  # it fits into the pipe, so the child could write it and end


def wait_a_little() -> None:
    """Sleep in a thread without keeping the process from ending.

    Raises:
        SystemExit: the process is about to end.
    """
    if not threading.main_thread().is_alive():
        raise SystemExit
    time.sleep(_LOOK_S)


def main() -> None:
    """Read a tokenizer from standard input and write the comparison to standard output."""
    library, count = sys.argv[1:]
    os.nice(_NICENESS)
    comparison = compare_here(
        TokenizerChoice(library), sys.stdin.buffer.read().decode(), int(count)
    )
    sys.stdout.buffer.write(msgspec.json.encode(comparison))


if __name__ == "__main__":
    main()

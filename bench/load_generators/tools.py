"""Find and run the programs that make load."""

from __future__ import annotations

import resource
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from bench.http_client import LoadError
from bench.load import Measurement
from sglang_prefill_ext.errors import ConfigError

PACKAGES = {"wrk": "wrk", "h2load": "nghttp2-client"}
"""Tool -> its Debian package."""


def require(tool: str) -> str:
    """Return the path of a tool.

    Raises:
        ConfigError: the tool is not installed.
    """
    path = shutil.which(tool)
    if path is None:
        raise ConfigError(
            f"{tool} is not installed. On Debian or Ubuntu: apt-get install {PACKAGES[tool]}"
        )
    return path


def outputs(commands: Sequence[Sequence[str]]) -> list[str]:
    """Run commands side by side; return what each wrote to its standard output.

    Raises:
        LoadError: one of them failed.
    """
    start = partial(
        subprocess.Popen[str], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    running = list(map(start, commands))
    written = [process.communicate()[0] for process in running]
    for process, text in zip(running, written, strict=True):
        if process.returncode:
            raise LoadError(f"{process.args!r:.80} ended with {process.returncode}: {text[-300:]}")
    return written


@contextmanager
def counting_cpu(seen: Measurement) -> Iterator[None]:
    """Record the CPU time of child processes that end while the body runs."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    yield
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seen.generator_cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

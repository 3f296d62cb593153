"""Let the same judge query both servers, one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from bench.judges.opinion import Opinion, Verdict, compare
from bench.score.plan import EXTENSION, PATHS, QUIET_ARGS
from bench.server import MeasuredServer
from bench.status import requests_by_path

_ARGS = ("--disable-radix-cache", *QUIET_ARGS)


class Judge(Protocol):
    """An outside tool, and the model and flags with which it is used.

    Attributes:
        name: of the tool, with its version.
        preset: the model.
        flags: flags of both servers.
        tolerance: largest allowed difference of two numbers.
    """

    name: str
    preset: str
    flags: tuple[str, ...]
    tolerance: float

    def ask(self, base_url: str, model: Path, scratch: Path) -> Opinion:
        """Query a server and return the opinion; `scratch` is a directory to create if needed."""
        ...


def judge_both(judge: Judge, model: Path, tell: Callable[[str], None]) -> Verdict:
    """Start stock, then the extension, and compare the judge's opinions of them.

    Raises:
        ServerStartError: a server did not start.
        JudgeError: the tool failed.
    """
    opinions: dict[str, Opinion] = {}
    counted: Counter[str] = Counter()  # of the last server, which is the extension
    for path in PATHS:
        tell(f"{judge.name}: {path}")
        flags = [*_ARGS, *judge.flags, *(["--enable-prefill-only"] if path == EXTENSION else [])]
        log = model.parent / f"{path}.log"
        with MeasuredServer(model, flags, log_path=log) as server:
            before = requests_by_path(server.port)
            opinions[path] = judge.ask(server.base_url, model, model.parent / path)
            counted = requests_by_path(server.port) - before
    stock, extension = (opinions[path] for path in PATHS)
    return compare(judge.name, stock, extension, dict(counted), judge.tolerance)

"""Forked children of a program, in which SGLang is imported already but has no state yet."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
from collections.abc import Callable


def import_models() -> None:
    """Import SGLang's models, which each child would otherwise do by itself."""
    importlib.import_module("sglang.srt.models.registry")
    gc.freeze()  # else the first collection in each child would copy all pages


def run_in_child(name: str, work: Callable[..., object], *args: object) -> None:
    """Run work in a child to its end.

    Raises:
        SystemExit: it failed; names what it was about.
    """
    child = multiprocessing.get_context("fork").Process(target=work, args=args)
    child.start()
    child.join()
    if child.exitcode:
        raise SystemExit(f"{name}: exit status {child.exitcode}")

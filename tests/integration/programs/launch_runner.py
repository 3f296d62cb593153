"""Starts servers up to the point where they are refused; ``launch_runner.py CASES OUT``.

Both files are JSON, with an entry for each case by name. A case has ``argv`` and may have ``env``,
``changed`` (dotted name of a function of SGLang that is replaced by a different one) and
``parse_only``. It runs as a script; each case is a child that is forked after the imports, which
take most of the time.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import multiprocessing
import os
import pkgutil
import signal
import sys
import warnings
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")

from sglang.launch_server import run_server  # noqa: E402
from sglang.srt.plugins import load_plugins  # noqa: E402
from sglang.srt.server_args import prepare_server_args  # noqa: E402

from sglang_prefill_ext.border.activation import config_of  # noqa: E402
from sglang_prefill_ext.patching.table import PATCHES  # noqa: E402

TIMEOUT_S = 120.0
ROLES = ("scheduler", "tokenizer_manager", "data_parallel_controller")


def other(self: Any, something_else: Any) -> Any:
    """Replaces a function of SGLang by one with another signature and body."""
    return self, something_else


def launch(case: dict[str, Any]) -> dict[str, Any]:
    """Do what ``python -m sglang.launch_server`` does."""
    os.environ.update(case.get("env", {}))
    if changed := case.get("changed"):
        owner, _, attribute = changed.rpartition(".")
        module, _, name = owner.rpartition(".")
        setattr(getattr(importlib.import_module(module), name), attribute, other)
    output, outcome = io.StringIO(), {"exit": None, "config": None}
    with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
        try:
            load_plugins()
            args = prepare_server_args(case["argv"])
            config = config_of(args)
            outcome["config"] = None if config is None else asdict(config)
            if not case.get("parse_only"):
                run_server(args)
        except SystemExit as stop:
            outcome["exit"] = stop.code
    children = [child.name for child in multiprocessing.active_children()]
    return {**outcome, "output": output.getvalue(), "children": children}


def run(case: dict[str, Any], answer: Connection) -> None:
    os.setsid()
    try:
        answer.send(launch(case))
    except Exception as error:
        answer.send({"exit": None, "error": f"{type(error).__name__}: {error}"})


def main() -> None:
    for role in ROLES:
        importlib.import_module(f"sglang.srt.managers.{role}")
    importlib.import_module("sglang.srt.entrypoints.http_server")
    for patch in PATCHES:
        pkgutil.resolve_name(patch.hook)
    cases, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    context, outcomes = multiprocessing.get_context("fork"), {}
    for name, case in cases.items():
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=run, args=(case, sender))
        child.start()
        started = {"exit": None, "error": f"not refused within {TIMEOUT_S:g} s"}
        outcomes[name] = receiver.recv() if receiver.poll(TIMEOUT_S) else started
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.join()
    out.write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main()

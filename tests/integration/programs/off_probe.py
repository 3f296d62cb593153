"""Loads the plugins, parses arguments without the flag, and prints as JSON what changed.

Run as a script: the process must not have been patched before.
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from typing import Any

warnings.simplefilter("ignore")

from sglang.srt.plugins import load_plugins  # noqa: E402
from sglang.srt.server_args import prepare_server_args  # noqa: E402
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol  # noqa: E402

from sglang_prefill_ext.border import patches  # noqa: E402
from sglang_prefill_ext.patching.spec import Group  # noqa: E402
from sglang_prefill_ext.patching.table import PATCHES  # noqa: E402


def attributes() -> dict[str, dict[str, object]]:
    """Everything in the classes that an enabled server changes, by dotted name."""
    found = {}
    for owner in sorted({patch.owner for patch in PATCHES}):
        module, _, name = owner.rpartition(".")
        found[owner] = dict(vars(getattr(importlib.import_module(module), name)))
    return found


def routes() -> list[str]:
    server = importlib.import_module("sglang.srt.entrypoints.http_server")
    return sorted(route.path for route in server.app.routes if hasattr(route, "path"))


def main() -> None:
    stock, stock_routes = attributes(), routes()
    load_plugins()
    args: Any = prepare_server_args(sys.argv[1:])
    report = {
        "changed": sorted(
            f"{owner}.{name}"
            for owner, before in stock.items()
            for name, value in attributes()[owner].items()
            if before.get(name) is not value
        ),
        "flags": sorted(patch.target for patch in PATCHES if patch.group is Group.FLAGS),
        "applied": sorted(state.target for state in patches.states() if state.applied),
        "carried": [name for name in vars(args) if "prefill" in name],
        "same_routes": routes() == stock_routes,
        "same_http": "__new__" not in vars(HttpToolsProtocol),
    }
    sys.stdout.write("\n" + json.dumps(report) + "\n")


if __name__ == "__main__":
    main()

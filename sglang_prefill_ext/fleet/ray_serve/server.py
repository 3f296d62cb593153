"""SGLang's server with a key: ``python -m sglang_prefill_ext.fleet.ray_serve.server FLAGS``.

SGLang takes its key as a flag only. Here it is in the environment, where no list of processes shows
it.
"""

from __future__ import annotations

import os
import runpy
import sys

from sglang_prefill_ext.fleet.settings import API_KEY_VARIABLE


def main() -> None:
    if key := os.environ.pop(API_KEY_VARIABLE, ""):
        sys.argv.append(f"--api-key={key}")  # it may begin with a hyphen
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

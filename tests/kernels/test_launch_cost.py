"""The host's calls for the launches of a layer; counted, because times depend on the machine."""

from __future__ import annotations

import os
import subprocess
import sys

MOST_CALLS = {
    "shared_prefix_attention": 32,
    "shared_prefix_attention, cached": 40,
    "shared_prefix_attention, prefix": 32,
    "merge_state": 30,
    "block_choice": 20,
}
"""Calls of functions, Python's and C's, outside of Triton. Looking at a tensor takes two; checks
that run again in every layer are 100 to 180 more."""

COUNT = """
from bench.kernels.launch_cost import calls_of_ours, launches, without_a_gpu
with without_a_gpu():
    for name, launch in launches().items():
        launch()
        print(name, calls_of_ours(launch), sep="=")
"""


def test_arguments_are_checked_once_a_layout() -> None:
    # In a process without the interpreter, under which kernels have no launcher. The rest of the
    # environment may say where packages lie.
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, "-c", COUNT],
        env=kept | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    counted = dict(line.split("=") for line in ran.stdout.split("\n") if line)
    assert counted.keys() == MOST_CALLS.keys()
    over = {name: count for name, count in counted.items() if int(count) > MOST_CALLS[name]}
    assert over == {}

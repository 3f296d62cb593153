"""Run `patch_probe` once, in a process of its own, for all tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def probe() -> dict[str, Any]:
    """The report of `patch_probe` on the installed SGLang."""
    command = [sys.executable, "-m", "tests.contract.patch_probe"]
    run = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr[-4000:]
    report: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return report

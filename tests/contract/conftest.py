"""What the installed SGLang did in a process of its own; one run serves all tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def probe() -> dict[str, Any]:
    """What `patch_probe` saw on the installed SGLang."""
    script = Path(__file__).with_name("patch_probe.py")
    run = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr[-4000:]
    report: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return report

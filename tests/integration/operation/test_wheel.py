"""The wheel that `make wheel` builds, in an environment with nothing else in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_prefill_ext.local_server.environment import CPU_ARGS
from tests.integration.support.own_server import ROOT

pytestmark = pytest.mark.timeout(1800)

UV = Path(sys.executable).with_name("uv")


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command without the environment of this project, which must succeed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=kept, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def give_byte_code(python: Path) -> None:
    """Link byte code of the packages that our own environment has, too.

    SGLang imports some 5,000 modules, and compiling them takes a minute.
    """
    ours = Path(sysconfig.get_path("purelib"))
    (theirs,) = python.parents[1].glob("lib/python*/site-packages")
    for found, _, names in os.walk(ours):
        target = theirs / Path(found).relative_to(ours)
        if target.name == "__pycache__" and target.parent.is_dir():
            target.mkdir(exist_ok=True)
            for name in {*names} - {*os.listdir(target)}:  # some wheels have byte code
                try:
                    os.link(f"{found}/{name}", target / name)
                except OSError:  # another file system
                    shutil.copyfile(f"{found}/{name}", target / name)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment into which the wheel was installed."""
    directory = tmp_path_factory.mktemp("clean")
    run("make", "wheel", f"WHEELS={directory}", cwd=ROOT)
    (wheel,) = directory.glob("*.whl")
    run(UV, "venv", "--quiet", "--python", sys.executable, directory / "env", cwd=directory)
    python = directory / "env" / "bin" / "python"
    # In the checkout, whose overrides uv reads, so that Python 3.13 needs no compiler.
    run(UV, "pip", "install", "--quiet", "--python", python, wheel, cwd=ROOT)
    give_byte_code(python)
    return python.parent


def test_doctor_is_green_and_the_kernels_are_there(installed: Path, tmp_path: Path) -> None:
    report = json.loads(run(installed / "sglang-prefill", "doctor", "--json", cwd=tmp_path))
    assert report["ok"]
    code = "import prefill_kernels, sglang_prefill_ext as ext; print(ext.__file__)"
    where = run(installed / "python", "-c", code, cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)


def test_sglang_takes_the_flag(
    installed: Path, tmp_path: Path, model_dir: Callable[[str], Path]
) -> None:
    argv = ["--model-path", str(model_dir("micro")), *CPU_ARGS, "--enable-prefill-only"]
    code = (
        "from sglang.srt.plugins import load_plugins\n"
        "load_plugins()  # as SGLang's own command does\n"
        "from sglang.srt.server_args import prepare_server_args\n"
        f"args = prepare_server_args({argv!r})\n"
        "print(args._prefill_only.config)\n"
    )
    assert "PrefillOnlyConfig(" in run(installed / "python", "-c", code, cwd=tmp_path)

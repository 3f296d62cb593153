"""The programs that judge; they live in an environment of their own and see HTTP and files only.

SGLang pins what it needs; a tool's needs must not change that, nor what SGLang finds and imports.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from sglang_prefill_ext.errors import PrefillExtError

_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
_VERSION = "import sys, importlib.metadata as m; print(m.version(sys.argv[1]))"


class JudgeError(PrefillExtError):
    """A judging tool is missing or failed, so there is no verdict."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The environment with the dependency group `judges`; ``make judges`` makes it.

    Attributes:
        directory: of the environment.
    """

    directory: Path

    def run(self, program: str, *args: str | Path, cache: Path | None = None) -> str:
        """Run a program to its end and return what it printed.

        Args:
            cache: where it may keep files between runs; by default wherever it likes.

        Raises:
            JudgeError: it is not there, or its exit status is not 0.
        """
        command = [str(self.directory / "bin" / program), *map(str, args)]
        env = os.environ | _OFFLINE | ({"HF_HOME": str(cache)} if cache else {})
        env.pop("PYTHONPATH", None)  # nothing of this project's environment belongs there
        try:
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        except OSError as error:
            raise JudgeError(
                f"{command[0]} does not run ({error}); `make judges` installs it"
            ) from (error)
        if done.returncode:
            raise JudgeError(
                f"{program} ended with status {done.returncode}: {done.stderr[-2000:]}"
            )
        return done.stdout

    def version(self, package: str) -> str:
        """Return its name and version.

        Raises:
            JudgeError: it is not installed.
        """
        return f"{package} {self.run('python', '-c', _VERSION, package).strip()}"

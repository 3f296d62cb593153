"""Run the judging programs in an environment of their own; they use only HTTP and files.

SGLang pins versions of what it needs. The requirements of a tool must change neither these versions
nor what SGLang finds to import.
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
            cache: directory in which it may keep files between runs; None: the program's default.

        Raises:
            JudgeError: the program is missing, or its exit status is not 0.
        """
        command = [str(self.directory / "bin" / program), *map(str, args)]
        env = os.environ | _OFFLINE | ({"HF_HOME": str(cache)} if cache else {})
        env.pop("PYTHONPATH", None)  # the tool must not import from this project's environment
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
        """Return the name and the version of an installed package.

        Raises:
            JudgeError: the package is not installed.
        """
        return f"{package} {self.run('python', '-c', _VERSION, package).strip()}"

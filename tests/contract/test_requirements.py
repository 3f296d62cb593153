"""Packages that are installed with this one change nothing in a server that does not use it."""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def brought_by(requirements: list[str]) -> set[str]:
    """Names of all packages that are installed with these, directly or through others."""
    found: set[tuple[str, str]] = set()  # with the extra that is asked for, if any
    waiting = [Requirement(each) for each in requirements]
    while waiting:
        required = waiting.pop()
        name = canonicalize_name(required.name)
        for extra in ("", *required.extras):
            if (name, extra) in found:
                continue
            found.add((name, extra))
            try:
                further = [Requirement(each) for each in requires(name) or ()]
            except PackageNotFoundError:  # for another platform
                continue
            waiting += [r for r in further if not r.marker or r.marker.evaluate({"extra": extra})]
    return {name for name, _ in found}


def test_uvicorn_reads_http_as_beside_sglang_alone() -> None:
    """If httptools is installed, uvicorn uses it; httptools does not limit the size of heads."""
    brought = brought_by(PROJECT["dependencies"])
    assert {"sglang", "uvicorn", "h11"} <= brought
    assert "httptools" not in brought
    fast = PROJECT["optional-dependencies"]["httptools"]
    assert "httptools" in brought_by(fast)

"""The diffs in ``patches/`` against the files of the installed SGLang."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from email.utils import parseaddr
from importlib import metadata
from pathlib import Path

import pytest

from patches.tools import upstream
from sglang_prefill_ext.patching.merged import DIFFS_LOCK

DIFFS = upstream.read_series(upstream.DIRECTORY)
INSTALLED = metadata.distribution("sglang")
PACKAGES = Path(str(INSTALLED.locate_file("")))
each_diff = pytest.mark.parametrize("diff", DIFFS, ids=lambda diff: diff.number)


def _text(diff: upstream.Diff) -> str:
    return (upstream.DIRECTORY / diff.name).read_text()


def _test_of(diff: upstream.Diff) -> str:
    (test,) = (name for name in diff.added if name.startswith("test/"))
    return test


def _lay_out(diffs: Iterable[upstream.Diff], tree: Path) -> None:
    """Make `tree` a git repository with the files of SGLang that the diffs change."""
    _git(tree, "init", "--quiet")
    for name in {name for diff in diffs for name in diff.changed}:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(PACKAGES / name.removeprefix("python/"), tree / name)


def _apply(diff: upstream.Diff, tree: Path) -> None:
    _git(tree, "apply", str(upstream.DIRECTORY / diff.name))


def _git(tree: Path, *arguments: str) -> None:
    # Inside a git hook, GIT_DIR and its like would lead to the outer repository.
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    subprocess.run(["git", "-C", str(tree), *arguments], env=own, check=True)


# The files


def test_the_series_lists_every_diff_once_and_in_order() -> None:
    names = [diff.name for diff in DIFFS]
    assert names == sorted(path.name for path in upstream.DIRECTORY.glob("*.patch"))
    numbers = [diff.number for diff in DIFFS]
    assert numbers == [f"{index:04d}" for index in range(1, len(DIFFS) + 1)]


def test_the_table_is_up_to_date() -> None:
    page = upstream.DIRECTORY / "README.md"
    assert page.read_text() == upstream.renewed(page, upstream.table(DIFFS)), upstream.__doc__
    assert DIFFS_LOCK.read_text() == upstream.added(DIFFS), upstream.__doc__


@each_diff
def test_the_header_is_complete(diff: upstream.Diff) -> None:
    for section in ("Symptom", "Cause", "Fix", "Tests"):
        assert re.search(rf"^{section}:\s+\S", diff.description, re.MULTILINE)
    assert re.fullmatch(r"[a-z0-9_ ]+: \S.*[^.]", diff.subject)
    assert parseaddr(diff.author)[1] == "maintainers@sglang-prefill-ext.invalid"
    assert re.fullmatch(r"not sent|https://\S+", diff.trailers["Upstream-Status"])
    assert diff.trailers["Targets"] == f"sglang v{INSTALLED.version}"


@each_diff
def test_a_seam_is_for_any_plugin(diff: upstream.Diff) -> None:
    """A diff for upstream neither mentions this package nor imports it."""
    ours = re.compile(r"prefill[_-](ext|only)")
    added = [line for line in _text(diff).splitlines() if line.startswith("+")]
    assert [line for line in (diff.subject, diff.description, *added) if ours.search(line)] == []


# The changes


@each_diff
def test_it_applies_to_the_installed_release(diff: upstream.Diff, tmp_path: Path) -> None:
    _lay_out([diff], tmp_path)
    before = {name: (tmp_path / name).read_text() for name in diff.changed}
    _apply(diff, tmp_path)
    after = {name: (tmp_path / name).read_text() for name in (*diff.changed, *diff.added)}
    assert before
    assert [name for name in before if after[name] == before[name]] == []
    for name, source in after.items():
        compile(source, name, "exec", dont_inherit=True)


def test_all_apply_together_in_the_order_of_the_series(tmp_path: Path) -> None:
    _lay_out(DIFFS, tmp_path)
    for diff in DIFFS:
        _apply(diff, tmp_path)
    for path in tmp_path.rglob("*.py"):
        ast.parse(path.read_text())


@each_diff
def test_it_brings_a_test_that_says_how_to_run_it(diff: upstream.Diff, tmp_path: Path) -> None:
    _lay_out([diff], tmp_path)
    _apply(diff, tmp_path)
    name = _test_of(diff)
    tree = ast.parse((tmp_path / name).read_text())
    assert f"python -m pytest {name}" in (ast.get_docstring(tree) or "")
    assert name in diff.description
    functions = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert [name for name in functions if name.startswith("test_")] != []
    called = {ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    assert called & {"register_cpu_ci", "register_cuda_ci"}

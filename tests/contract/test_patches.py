"""The diffs in ``patches/`` against the files of the installed SGLang."""

from __future__ import annotations

import ast
import re
from email.utils import parseaddr
from importlib import metadata
from pathlib import Path

import pytest

from sglang_prefill_ext.patching import upstream

DIFFS = upstream.read_series(upstream.DIRECTORY)
INSTALLED = metadata.distribution("sglang")
PACKAGES = Path(str(INSTALLED.locate_file("")))
each_diff = pytest.mark.parametrize("diff", DIFFS, ids=lambda diff: diff.number)


def _text(diff: upstream.Diff) -> str:
    return (upstream.DIRECTORY / diff.name).read_text()


def _test_of(diff: upstream.Diff) -> str:
    (test,) = (name for name in diff.added if name.startswith("test/"))
    return test


# The files


def test_the_series_lists_every_diff_once_and_in_order() -> None:
    names = [diff.name for diff in DIFFS]
    assert names == sorted(path.name for path in upstream.DIRECTORY.glob("*.patch"))
    numbers = [diff.number for diff in DIFFS]
    assert numbers == [f"{index:04d}" for index in range(1, len(DIFFS) + 1)]


def test_the_table_is_up_to_date() -> None:
    text = (upstream.DIRECTORY / "README.md").read_text()
    assert text == upstream.with_table(text, upstream.table(DIFFS)), upstream.__doc__


@each_diff
def test_the_header_is_complete(diff: upstream.Diff) -> None:
    assert diff.missing() == ()
    assert re.fullmatch(r"[a-z0-9_ ]+: \S.*[^.]", diff.subject)
    assert parseaddr(diff.author)[1] == "maintainers@sglang-prefill-ext.invalid"
    assert re.fullmatch(r"not sent|https://\S+", diff.trailers["Upstream-Status"])
    assert diff.trailers["Targets"] == f"sglang v{INSTALLED.version}"


@each_diff
def test_a_seam_is_for_any_plugin(diff: upstream.Diff) -> None:
    """What goes upstream neither speaks of this package nor imports it."""
    ours = re.compile(r"prefill[_-](ext|only)")
    added = [line for line in _text(diff).splitlines() if line.startswith("+")]
    assert [line for line in (diff.subject, diff.description, *added) if ours.search(line)] == []


# The changes


@each_diff
def test_it_applies_to_the_installed_release(diff: upstream.Diff, tmp_path: Path) -> None:
    upstream.lay_out([diff], PACKAGES, tmp_path)
    before = {name: (tmp_path / name).read_text() for name in diff.changed}
    upstream.apply(upstream.DIRECTORY / diff.name, tmp_path)
    after = {name: (tmp_path / name).read_text() for name in (*diff.changed, *diff.added)}
    assert before
    assert [name for name in before if after[name] == before[name]] == []
    for name, source in after.items():
        compile(source, name, "exec", dont_inherit=True)


def test_all_apply_together_in_the_order_of_the_series(tmp_path: Path) -> None:
    upstream.lay_out(DIFFS, PACKAGES, tmp_path)
    for diff in DIFFS:
        upstream.apply(upstream.DIRECTORY / diff.name, tmp_path)
    for path in tmp_path.rglob("*.py"):
        ast.parse(path.read_text())


@each_diff
def test_it_brings_a_test_that_says_how_to_run_it(diff: upstream.Diff, tmp_path: Path) -> None:
    upstream.lay_out([diff], PACKAGES, tmp_path)
    upstream.apply(upstream.DIRECTORY / diff.name, tmp_path)
    name = _test_of(diff)
    tree = ast.parse((tmp_path / name).read_text())
    assert f"python -m pytest {name}" in (ast.get_docstring(tree) or "")
    assert name in diff.description
    functions = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert [name for name in functions if name.startswith("test_")] != []
    called = {ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    assert called & {"register_cpu_ci", "register_cuda_ci"}

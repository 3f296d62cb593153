"""Reading and listing patch files, which are made for these tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patches.tools import upstream
from sglang_prefill_ext.patching.merged import load_added
from sglang_prefill_ext.patching.spec import Group, Kind, Patch

TEXT = """\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: A Writer <writer@example.invalid>
Date: Fri, 20 Nov 2026 00:00:00 +0000
Subject: [PATCH] loop: a subject that is long enough to be folded by git in
 the header

Symptom: it stops.

Cause: a condition
that never holds.

Fix: another.

Tests: none needed.

Adds: sglang.loop.second sglang.loop.third
Upstream-Status: not sent
Targets: sglang v0.5.23
---
 python/sglang/loop.py | 2 +-
 1 file changed, 1 insertion(+), 1 deletion(-)
 create mode 100644 test/test_loop.py

diff --git a/python/sglang/loop.py b/python/sglang/loop.py
--- a/python/sglang/loop.py
+++ b/python/sglang/loop.py
@@ -1,3 +1,3 @@
 first
-second
+2nd
 third
diff --git a/test/test_loop.py b/test/test_loop.py
new file mode 100644
--- /dev/null
+++ b/test/test_loop.py
@@ -0,0 +1 @@
+assert True
"""
NAME = "0007-loop.patch"


def _hook(patch_id: str, diffs: str) -> Patch:
    return Patch(patch_id, "a.b.C.d", Kind.AFTER, "x:y", Group.FLAGS, "why.", diffs)


@pytest.fixture
def patch_file(tmp_path: Path) -> Path:
    path = tmp_path / NAME
    path.write_text(TEXT)
    return path


def test_a_patch_file_is_read() -> None:
    diff = upstream.parse(NAME, TEXT)
    assert diff.number == "0007"
    assert diff.subject == "loop: a subject that is long enough to be folded by git in the header"
    assert diff.author == "A Writer <writer@example.invalid>"
    assert diff.description.startswith("Symptom: it stops.")
    assert diff.description.endswith("Tests: none needed.")
    assert diff.trailers["Upstream-Status"] == "not sent"
    assert diff.trailers["Targets"] == "sglang v0.5.23"
    assert diff.adds == ["sglang.loop.second", "sglang.loop.third"]
    assert diff.changed == ("python/sglang/loop.py",)
    assert diff.added == ("test/test_loop.py",)


def test_a_removed_line_of_dashes_is_not_a_file() -> None:
    diff = upstream.parse(NAME, TEXT.replace("-second\n+2nd", "--- second\n+++ 2nd"))
    assert diff.changed == ("python/sglang/loop.py",)


def test_the_series_gives_the_order(tmp_path: Path) -> None:
    for name in ("0001-a.patch", "0002-b.patch"):
        (tmp_path / name).write_text(TEXT)
    (tmp_path / "series").write_text("0002-b.patch\n0001-a.patch\n")
    assert [d.name for d in upstream.read_series(tmp_path)] == ["0002-b.patch", "0001-a.patch"]


def test_the_table_names_what_a_diff_replaces() -> None:
    diff = upstream.parse(NAME, TEXT)
    hooks = (_hook("P01", "0007"), _hook("P02", "0001"), _hook("P03", "0002 0007"))
    assert upstream.table([diff], hooks).splitlines() == [
        "All diffs: upstream: not sent, against: sglang v0.5.23.",
        "",
        "| diff | subject | replaces |",
        "|---|---|---|",
        f"| [0007]({NAME}) | {diff.subject} | P01, P03 |",
    ]
    assert upstream.table([diff], ()).splitlines()[-1].endswith(" |  |")


def test_what_not_all_diffs_have_in_common_has_a_column() -> None:
    diff = upstream.parse(NAME, TEXT)
    sent = upstream.parse(NAME, TEXT.replace("not sent", "https://example.org/pull/1"))
    assert upstream.table([diff, sent], ()).splitlines() == [
        "All diffs: against: sglang v0.5.23.",
        "",
        "| diff | subject | replaces | upstream |",
        "|---|---|---|---|",
        f"| [0007]({NAME}) | {diff.subject} |  | not sent |",
        f"| [0007]({NAME}) | {diff.subject} |  | https://example.org/pull/1 |",
    ]


@given(subject=st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1))
def test_every_row_has_the_columns_of_the_header(subject: str) -> None:
    diff = upstream.Diff(NAME, subject, "", "", {}, (), ())
    rows = [row for row in upstream.table([diff], ()).splitlines() if row.startswith("|")]
    assert {row.replace(r"\|", "").count("|") for row in rows} == {4}


BEGIN, END = "<!-- begin of it, by a tool -->", "<!-- end of it -->"


def test_only_the_part_between_the_markers_is_renewed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"head\n{BEGIN}\nold\n{END}\ntail\n")
    renewed = upstream.renewed(page, "new")
    assert renewed == f"head\n{BEGIN}\n\nnew\n\n{END}\ntail\n"
    page.write_text(renewed)
    assert upstream.renewed(page, "new") == renewed


@pytest.mark.parametrize("marker", [BEGIN, END])
def test_a_missing_marker_is_an_error(tmp_path: Path, marker: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}\n{END}\n".replace(marker, ""))
    with pytest.raises(ValueError, match=r"page\.md lacks a marker"):
        upstream.renewed(page, "new")


def test_the_command_renews_the_readme_and_the_lock(patch_file: Path, tmp_path: Path) -> None:
    (tmp_path / "series").write_text(NAME)
    (tmp_path / "README.md").write_text(f"head\n{BEGIN}\n{END}\n")
    lock = tmp_path / "diffs.lock.json"
    upstream.main(tmp_path, lock)
    assert f"[0007]({patch_file.name})" in (tmp_path / "README.md").read_text()
    assert load_added(lock) == {"0007": ["sglang.loop.second", "sglang.loop.third"]}

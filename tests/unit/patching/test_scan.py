from __future__ import annotations

from pathlib import Path

import pytest

from sglang_prefill_ext.patching import scan
from sglang_prefill_ext.patching.scan import BORDER, PACKAGE, Names


@pytest.mark.parametrize(
    ("source", "imports"),
    [
        ("from sglang.a import B, C as D", {"sglang.a.B", "sglang.a.C"}),
        ("import sglang.a as a", {"sglang.a"}),
        ("def f():\n    from sglang.a import B", {"sglang.a.B"}),
        ("if TYPE_CHECKING:\n    from sglang.a import B", {"sglang.a.B"}),
        ("import os.path", {"os"}),
    ],
)
def test_imports_are_found_wherever_they_stand(source: str, imports: set[str]) -> None:
    assert scan.read(source).imports == imports


@pytest.mark.parametrize(
    "source",
    [
        "scheduler.queue",
        "scheduler.queue = 1",
        "work().queue",
        "self.scheduler.queue",
        "from sglang.a import B\nB.queue",
        f"from {BORDER} import other\nother.queue",
        "class A(Unknown):\n    def f(self): return self.queue",
        "from sglang.a import B\nclass A(B):\n    def queue(self): ...",
        "class A:\n    def f(own): return [self.queue for self in own]\nself.queue",
    ],
)
def test_an_attribute_of_what_may_be_another_s_is_touched(source: str) -> None:
    assert "queue" in scan.read(source).touched


@pytest.mark.parametrize(
    "source",
    [
        "import numpy as np\nnp.queue",
        "import os.path\nos.queue",
        f"from {PACKAGE}.wire import packed\npacked.queue",
        "class A:\n    def f(self): return self.queue",
        "class A(Exception):\n    def f(self): return self.queue",
        "''.queue",
        "class A:\n    def queue(self): ...",
    ],
)
def test_an_attribute_of_ours_is_not(source: str) -> None:
    assert "queue" not in scan.read(source).touched


def test_keywords_and_strings_are_names_that_may_be_meant() -> None:
    names = scan.read("f(queue=1)\ngetattr(x, 'depth', None)\n'no name'")
    assert {"queue", "depth"} <= names.named
    assert {"queue", "depth", "no name"} & names.touched == set()
    assert "no name" not in names.all


def test_what_is_called_or_derived_from_is_made() -> None:
    names = scan.read("from sglang import a\nfrom sglang.b import B\na.C()\nclass D(B): ...\nB.f")
    assert {"sglang.a.C", "sglang.b.B"} <= names.made


def test_functions_and_annotated_names_are_defined() -> None:
    source = "class A:\n    size: int\n    def f(self): ...\n    async def g(self): ..."
    assert {"size", "f", "g"} <= scan.read(source).defined


def test_modules_are_reached_through_others_and_by_either_form_of_import() -> None:
    modules = {
        "us.a": Names(imports={"us.b.function", "sglang.x"}),
        "us.b": Names(imports={"us.c"}),
        "us.c": Names(imports={"us.a.other"}),
        "us.d": Names(),
    }
    assert scan.reached(modules, "us.a") == {"us.a", "us.b", "us.c"}
    assert scan.reached(modules, "elsewhere") == set()


def test_a_package_is_read_with_all_below_it(tmp_path: Path) -> None:
    inner = tmp_path / "us" / "inner"
    inner.mkdir(parents=True)
    for path in (tmp_path / "us" / "__init__.py", inner / "__init__.py", inner / "a.py"):
        path.write_text("from sglang import x\n")
    assert set(scan.read_package(tmp_path / "us")) == {"us", "us.inner", "us.inner.a"}


@pytest.mark.parametrize(
    ("module", "is_border"),
    [(BORDER, True), (f"{BORDER}.model", True), (f"{BORDER}.a.b", True), (f"{BORDER}s.x", False)],
)
def test_the_border_is_a_package_with_all_below_it(module: str, is_border: bool) -> None:
    assert scan.is_border(module) is is_border


def test_users_import_it_or_make_it_or_else_read_its_name() -> None:
    modules = {
        "us.a": Names(imports={"sglang.A"}, touched={"queue"}),
        "us.b": Names(made={"sglang.B"}),
        f"{BORDER}.c": Names(touched={"queue", "step"}),
        f"{BORDER}.d": Names(named={"depth"}),
    }
    border = BORDER.partition(".")[2]
    assert scan.users(modules, "sglang.A", ["queue"]) == ("a",)
    assert scan.users(modules, "sglang.B.__init__") == ("b",)
    assert scan.users(modules, "sglang.C.step") == (f"{border}.c",)
    assert scan.users(modules, "sglang.C", ["queue", "depth"]) == (f"{border}.c", f"{border}.d")
    assert scan.users(modules, "sglang.C") == ()

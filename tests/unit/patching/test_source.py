from __future__ import annotations

import argparse
import asyncio
import collections
import functools
from pathlib import Path
from typing import Any

import pytest
import triton
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.patching.source import (
    find,
    fingerprint,
    members_of,
    missing_members,
    names_in,
    signature_text,
    source_of,
    underlying,
)

FUNCTION = '''def f(self, a):
    """Say # what."""
    b = self.queue.pop(a)
    return "#" + b
'''


def passthrough(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def plain(a: int, /, b: str = "x", *rest: int, c: float, **others: Any) -> None: ...


def test_signature_has_names_kinds_and_defaults_but_no_annotations() -> None:
    assert signature_text(plain) == "(a, /, b='x', *rest, c, **others)"


@pytest.mark.parametrize("descriptor", [classmethod, staticmethod, lambda f: f])
def test_underlying_looks_through_descriptors_and_wrappers(descriptor: Any) -> None:
    assert underlying(descriptor(passthrough(passthrough(plain)))) is plain


def test_underlying_looks_through_caches_and_kernels() -> None:
    assert underlying(functools.lru_cache(functools.cache(plain))) is plain
    assert underlying(triton.jit(noinline=True)(kernel)) is kernel
    tuned = triton.autotune([triton.Config({})], key=[])(triton.jit(kernel))
    assert underlying(tuned) is kernel


def kernel(numbers, size): ...  # type: ignore[no-untyped-def]


def test_underlying_leaves_a_class_alone() -> None:
    assert underlying(int) is int


def test_names_are_dotted_prefixes_of_what_the_source_reads() -> None:
    names = names_in(FUNCTION)
    assert {"self", "self.queue", "self.queue.pop", "a", "b"} <= names
    assert "queue" not in names


@pytest.mark.parametrize("fragment", ["key=lambda x: x),", "def f(:", ""])
def test_text_that_is_no_statement_has_no_names(fragment: str) -> None:
    assert names_in(fragment) == frozenset()


def test_a_builtin_has_no_source() -> None:
    assert source_of(len) == ""


class Slots:
    __slots__ = ("slot",)


class Base(Slots):
    declared: int

    def fill(self) -> None:
        self.in_base = 1


class Child(Base):
    constant = 1

    def __init__(self, other: Any) -> None:
        self.first, self.second = 1, 2
        self.typed: int = 3
        self.read = self.never_assigned  # type: ignore[attr-defined]
        other.foreign = 4


@pytest.mark.parametrize(
    "name", ["slot", "declared", "in_base", "fill", "constant", "first", "second", "typed", "read"]
)
def test_a_member_may_be_defined_declared_or_assigned(name: str) -> None:
    assert missing_members(Child, [name]) == []


def test_all_members_are_those_that_are_not_missing() -> None:
    found = members_of(Child)
    assert {"slot", "declared", "in_base", "fill", "constant", "first", "second"} <= found
    assert {"never_assigned", "foreign", "__module__"} & found == set()
    assert missing_members(Child, found) == []


def test_bases_of_other_distributions_have_no_members_of_interest() -> None:
    class CodedError(RuntimeError):
        code = 1

    assert members_of(CodedError) == {"code"}


def test_what_is_found_is_the_function_below_its_descriptor() -> None:
    assert find("collections.OrderedDict") is collections.OrderedDict
    assert find("asyncio.iscoroutine") is asyncio.iscoroutine
    assert (
        find("argparse.ArgumentParser.add_argument")
        is vars(argparse._ActionsContainer)["add_argument"]
    )


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nowhere.function", "No module named 'nowhere'"),
        ("collections.missing", "module 'collections' has no attribute 'missing'"),
        ("asyncio.tasks.missing", "module 'asyncio.tasks' has no attribute 'missing'"),
        ("asyncio.Queue.missing", "missing"),
    ],
)
def test_what_does_not_exist_is_not_found(target: str, said: str) -> None:
    with pytest.raises((AttributeError, ImportError), match=said):
        find(target)


@pytest.mark.parametrize("target", ["broken", "broken.Class", "broken.Class.method"])
def test_a_module_that_cannot_be_imported_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    (tmp_path / "whole_package").mkdir()
    (tmp_path / "whole_package" / "__init__.py").touch()
    (tmp_path / "whole_package" / "broken.py").write_text("import lost_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="'lost_dependency'"):
        find(f"whole_package.{target}")


def test_members_that_are_only_read_or_belong_to_others_are_missing() -> None:
    names = ["never_assigned", "first", "foreign", "other"]
    assert missing_members(Child, names) == ["never_assigned", "foreign", "other"]


def test_a_class_without_source_has_what_it_defines() -> None:
    assert missing_members(int, ["real", "unreal"]) == ["unreal"]


noise = st.sampled_from(["", "   ", "\t", "    # a comment", "# another"])


@given(st.lists(noise, min_size=4, max_size=4), st.sampled_from(["", "  ", "  # tail"]))
def test_fingerprint_ignores_comments_and_blank_lines(gaps: list[str], tail: str) -> None:
    lines = FUNCTION.splitlines()
    noisy = [text for line, gap in zip(lines, gaps, strict=True) for text in (line + tail, gap)]
    assert fingerprint("\n".join(noisy)) == fingerprint(FUNCTION)


@given(st.sampled_from(["queue", "pop", "self", "return", '"#"', "b = "]))
def test_fingerprint_sees_a_change_of_the_code(token: str) -> None:
    assert fingerprint(FUNCTION.replace(token, "other", 1)) != fingerprint(FUNCTION)


def test_fingerprint_takes_text_that_is_not_python_by_itself() -> None:
    assert fingerprint("key=lambda x: (x") != fingerprint("key=lambda x: (y")

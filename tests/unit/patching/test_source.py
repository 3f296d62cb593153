from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.patching.source import (
    fingerprint,
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

from __future__ import annotations

import pytest

from sglang_prefill_ext.texts.splice import MARKS, Boundaries


@pytest.mark.parametrize(
    ("before", "after", "allowed"),
    [
        ("a", " ", True),
        (".", " ", True),
        ("\u0301", " ", True),
        (" ", " ", False),
        ("\n", " ", False),
        ("\u3000", " ", False),
        ("\x1f", " ", False),
        ("a", "\n", True),
        ("字", "。", True),
        ("1", ".", False),
        ("é", ".", False),
        ("a", "'", False),
        ("a", "\t", False),
        ("a", "b", False),
    ],
)
def test_a_boundary_is_known_from_two_characters(before: str, after: str, allowed: bool) -> None:
    assert Boundaries().between(before, after) is allowed


def test_both_characters_of_a_boundary_lie_in_the_text_that_is_cut() -> None:
    boundaries = Boundaries()
    assert boundaries.last("one two ") == len("one two")
    assert boundaries.last("one two") == len("one")
    assert boundaries.first(" one two three") == len(" one")
    assert (boundaries.last("a b"), boundaries.first("a b ")) == (1, 1)
    assert (boundaries.last("word"), boundaries.first("word")) == (0, len("word"))
    assert (boundaries.last(""), boundaries.first("")) == (0, 0)
    assert (boundaries.last(" word"), boundaries.first("word.")) == (0, len("word"))


def test_the_search_for_a_boundary_ends() -> None:
    text = "a b" + "c" * 5_000
    assert Boundaries().last(text) == 0
    assert Boundaries().first(text[::-1]) == len(text)


def test_marks_and_closing_characters_are_the_tokenizers() -> None:
    assert not Boundaries(marks="").between("a", ".")
    assert not Boundaries(closing=frozenset(">")).between(">", " ")
    assert Boundaries(closing=frozenset(">")).inside("<x y>")
    assert not Boundaries().inside("<|im_start|>")
    assert len(set(MARKS)) == len(MARKS)

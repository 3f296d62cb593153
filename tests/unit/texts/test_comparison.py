from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from sglang_prefill_ext.texts import comparison as gate
from sglang_prefill_ext.texts import sample_texts
from sglang_prefill_ext.texts.comparison import compare
from sglang_prefill_ext.texts.frame import NO_FRAME
from sglang_prefill_ext.texts.libraries import flat
from sglang_prefill_ext.texts.splice import Boundaries, Splice
from sglang_prefill_ext.wire.arrays import FlatRows


class Bytes:
    """Every byte is a token."""

    name = "bytes"

    def rows(self, texts: Sequence[str]) -> FlatRows:
        return flat([list(text.encode()) for text in texts])

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return [bytes(row).decode() for row in rows]


class WrongOnce(Bytes):
    def rows(self, texts: Sequence[str]) -> FlatRows:
        return flat([[0] if text == "b" else list(text.encode()) for text in texts])


class Permissive(Bytes):
    def rows(self, texts: Sequence[str]) -> FlatRows:
        return flat([list(text.encode(errors="replace")) for text in texts])


class Failing(Bytes):
    def rows(self, texts: Sequence[str]) -> FlatRows:
        raise RuntimeError("too odd")


class WrongBack(Bytes):
    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return ["" for _ in rows]


@pytest.mark.parametrize(
    ("encoder", "difference"),
    [
        (Bytes(), ""),
        (WrongOnce(), "'b'"),
        (Permissive(), r"'\ud800', which is refused otherwise"),
        (Failing(), "RuntimeError: too odd"),
        (WrongBack(), "decoding"),
    ],
)
def test_a_library_passes_only_without_any_difference(encoder: Bytes, difference: str) -> None:
    comparison = compare(encoder, Bytes(), ["a", "b", "ü"])
    assert comparison.difference == difference
    assert 0 <= comparison.seconds < 60


def test_a_text_that_hugging_face_reads_may_be_read() -> None:
    assert compare(Permissive(), Permissive(), ["a"]).difference == ""


def test_texts_are_compared_until_one_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "_CHUNK", 2)
    assert compare(Bytes(), Bytes(), ["a", "b", "c"]).texts == 3
    assert compare(WrongOnce(), Bytes(), ["a", "b", "c"]).texts == 2
    assert compare(WrongOnce(), Bytes(), ["a", "c"]).difference == ""


def test_a_splice_that_differs_is_found() -> None:
    splice = Splice(Boundaries(), NO_FRAME)
    assert gate.splice_difference(splice, Bytes(), []) == ""
    assert gate.splice_difference(splice, _Joining(), []) != ""


def test_items_are_put_before_and_after_the_shared_text(monkeypatch: pytest.MonkeyPatch) -> None:
    orders = set()

    def encode(*_: object, item_first: bool) -> None:
        orders.add(item_first)

    monkeypatch.setattr(Splice, "encode", encode)
    assert gate.splice_difference(Splice(Boundaries(), NO_FRAME), Bytes(), []) == ""
    assert orders == {False, True}


class _Joining(Bytes):
    """The number of spaces in a text is its first token."""

    def rows(self, texts: Sequence[str]) -> FlatRows:
        return flat([[text.count(" "), *text.encode()] for text in texts])


def test_texts_are_the_same_everywhere_and_all_different() -> None:
    drawn = sample_texts.texts(5_000, ["<own>"])
    assert drawn == sample_texts.texts(5_000, ["<own>"])
    assert len(set(drawn)) == 5_000
    assert sum("<own>" in text for text in drawn) > 50
    assert any(len(text) > 1_000 for text in drawn)
    joined = "".join(drawn)
    assert all(each in joined for each in ("\u200d", "\ufffd", "\u0301", "漢", "\r\n", " " * 33))
    joined.encode()  # no surrogates: these are `UNREADABLE`
    with pytest.raises(UnicodeEncodeError):
        "".join(sample_texts.UNREADABLE).encode()


def test_however_many_tokens_are_added_there_are_other_texts() -> None:
    added = [f"<{number}>" for number in range(2_000)]
    drawn = sample_texts.texts(1_000, added)
    assert drawn[:501] == ["", *added[:500]]
    assert set(added).isdisjoint(drawn[501:])


def test_rows_of_the_same_ids_differ_by_where_they_end() -> None:
    rows = flat([[1, 2], [3]])
    assert gate.same(rows, flat([[1, 2], [3]]))
    assert not gate.same(rows, flat([[1], [2, 3]]))
    assert not gate.same(rows, flat([[1, 2], [4]]))


class Slow(Bytes):
    """Takes a millisecond for a call."""

    def rows(self, texts: Sequence[str]) -> FlatRows:
        time.sleep(1e-3)
        return super().rows(texts)


def test_speed_is_measured_on_ordinary_requests() -> None:
    assert 0 < gate.us_per_text(Bytes()) < 1e5
    assert 1e3 / 50 <= gate.us_per_text(Slow()) < 1e3
    assert Bytes().rows(["a"]).tolist() == [[97]]

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from bench.encode import run, ways
from bench.encode.ways import BATCH, SERVED, draw_texts, rows_of
from bench.gate import GateError
from bench.workloads import Shape
from sglang_prefill_ext.texts.frame import NO_FRAME
from sglang_prefill_ext.texts.libraries import flat
from sglang_prefill_ext.texts.splice import Boundaries, Splice
from tests.unit.texts.test_comparison import Bytes, WrongOnce

SHAPE = Shape(query_tokens=4, item_tokens=2, items=3)


class Texts:
    """Replaces `TextEncoder`: every byte is a token; if asked to, it encodes one prompt wrong."""

    wrong: tuple[str, ...] = ()

    def encode(self, texts: list[Any], *, continued: bool = False) -> list[list[int]]:
        return [[0] if text in self.wrong else list(text.encode()) for text in texts]

    def encode_joined(self, shared: str, items: list[str], *, item_first: bool) -> Any:
        whole = [item + shared if item_first else shared + item for item in items]
        return flat([[]]).values, flat(self.encode(whole))


def tokenizer(texts: list[str]) -> dict[str, list[list[int]]]:
    return {"input_ids": Texts().encode(texts)}


def all_ways() -> dict[str, ways.Way]:
    splice = Splice(Boundaries(), NO_FRAME)
    served = {SERVED: partial(Texts().encode_joined, item_first=False)}
    return ways.stock_ways(tokenizer) | ways.encoder_ways(Bytes, splice) | served


def test_requests_have_their_shape_and_are_the_same_again() -> None:
    drawn = draw_texts(SHAPE, 2, seed=3)
    assert drawn == draw_texts(SHAPE, 2, seed=3)
    assert drawn[0] != drawn[1]
    for query, items in drawn:
        assert (len(query.split()), [len(item.split()) for item in items]) == (4, [2, 2, 2])


def test_every_way_makes_the_same_ids() -> None:
    query, items = draw_texts(SHAPE, 1, seed=0)[0]
    wanted = [list((query + item).encode()) for item in items]
    for name, way in all_ways().items():
        assert (name, rows_of(way(query, items)).tolist()) == (name, wanted)


def test_every_way_is_measured_and_compared() -> None:
    results = run.measure(all_ways(), SHAPE, draw_texts(SHAPE, 3, seed=0), "bytes")
    assert [each.way for each in results] == list(all_ways())
    assert {each.compared for each in results} == {9}
    by_way = {each.way: each for each in results}
    assert by_way[BATCH].ratio == 1
    assert results[0].ratio_one_by_one == 1
    assert all(each.us_per_text > 0 for each in results)


def test_no_figure_of_a_way_that_makes_other_ids() -> None:
    found = all_ways()
    found["wrong"] = lambda query, items: [[1] for _ in items]
    with pytest.raises(GateError, match="wrong"):
        run.measure(found, SHAPE, draw_texts(SHAPE, 1, seed=0), "bytes")


def test_strings_that_differ_are_counted() -> None:
    served, plain = Texts(), Texts().encode
    equal = run.compare_strings(plain, served, ["a", "b", "c"])  # type: ignore[arg-type]
    assert (equal["single"], equal["mismatches"]) == (3, 0)
    assert min(equal["stock_us"], equal["extension_us"]) > 0
    served.wrong = ("b", "xb")
    found = run.compare_strings(plain, served, ["a", "b", "c"])  # type: ignore[arg-type]
    assert found["mismatches"] == 1
    cases = [("x", ["a", "b"]), ("y", ["b"])]
    for item_first, wrong in ((False, 1), (True, 0)):
        counted = run.count_joined_mismatches(
            plain,  # type: ignore[arg-type]
            served,  # type: ignore[arg-type]
            cases,
            item_first=item_first,
        )
        assert counted == (3, wrong)
    assert ways.mismatches(WrongOnce().rows(["a", "b"]), Bytes().rows(["a", "b"])) == 1

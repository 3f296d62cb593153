from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from tokenizers import Tokenizer, models, processors

from sglang_prefill_ext.texts.frame import frame_of, with_ids
from sglang_prefill_ext.texts.libraries import flat
from sglang_prefill_ext.wire.arrays import int_array
from tests.unit.texts.made import settings

_TEMPLATE = processors.TemplateProcessing("a $A b a", "$A $B", [("a", 1), ("b", 2)])


def post_processor(processor: Any) -> dict[str, Any] | None:
    tokenizer = Tokenizer(models.WordLevel({"x": 0}, "x"))
    tokenizer.post_processor = processor
    found: dict[str, Any] | None = settings(tokenizer)["post_processor"]
    return found


@pytest.mark.parametrize(
    ("processor", "rows"),
    [
        (processors.ByteLevel(), [[7, 8], [], [9]]),
        (_TEMPLATE, [[1, 7, 8, 2, 1], [1, 2, 1], [1, 9, 2, 1]]),
        (processors.BertProcessing(("s", 4), ("c", 3)), [[3, 7, 8, 4], [3, 4], [3, 9, 4]]),
        (processors.RobertaProcessing(("s", 4), ("c", 3)), [[3, 7, 8, 4], [3, 4], [3, 9, 4]]),
        (
            processors.Sequence([_TEMPLATE, processors.BertProcessing(("s", 4), ("c", 3))]),
            [[3, 1, 7, 8, 2, 1, 4], [3, 1, 2, 1, 4], [3, 1, 9, 2, 1, 4]],
        ),
    ],
)
def test_special_tokens_stand_around_every_row(processor: Any, rows: list[list[int]]) -> None:
    frame = frame_of(post_processor(processor))
    assert frame is not None
    assert frame.around(flat([[7, 8], [], [9]])).tolist() == rows


def test_ids_stand_around_rows_of_any_length() -> None:
    rows = [[7], [8, 9], [], [4, 5, 6]]
    for before, after in product(([], [1], [2, 3]), repeat=2):
        found = with_ids(flat(rows), int_array(before), int_array(after))
        assert found.tolist() == [[*before, *row, *after] for row in rows]


def test_without_a_post_processor_nothing_is_added() -> None:
    frame = frame_of(None)
    assert frame is not None
    rows = flat([[1]])
    assert frame.around(rows) is rows


def test_what_is_not_known_has_no_frame() -> None:
    unknown = {"type": "Unheard"}
    twice = post_processor(processors.TemplateProcessing("$A $A", "$A $B", []))
    assert frame_of(unknown) is None
    assert frame_of({"type": "Sequence", "processors": [unknown]}) is None
    assert frame_of(twice) is None

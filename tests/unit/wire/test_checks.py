from __future__ import annotations

import re
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import RequestError, TooManyItemsError, WrongTypeError
from sglang_prefill_ext.wire import checks
from sglang_prefill_ext.wire.checks import (
    check_count,
    check_memory,
    check_positions,
    check_prompt,
    check_repeated,
    check_unicode,
    flatten_ids,
)

MIB = 1 << 20
VOCAB = 50
OUTSIDE = [-1, VOCAB, 2**31, 2**63 - 1, 2**63, 2**70, -(2**70)]


@given(st.lists(st.lists(st.integers(0, VOCAB - 1))))
def test_flat_ids_are_the_concatenation(rows: list[list[int]]) -> None:
    flat = flatten_ids(rows, VOCAB, field="items")
    assert flat.tolist() == list(chain.from_iterable(rows))
    assert flat.dtype == np.int32


def test_negative_ids_name_embeddings_as_far_as_there_are_any() -> None:
    flat = flatten_ids([[-1, VOCAB - 1], [-2, 0]], VOCAB, field="items", overrides=2)
    assert flat.tolist() == [-1, VOCAB - 1, -2, 0]
    for outside in (-3, VOCAB):
        with pytest.raises(RequestError, match=str(outside)):
            flatten_ids([[0], [outside]], VOCAB, field="items", overrides=2)


@pytest.mark.parametrize("token", OUTSIDE)
@pytest.mark.parametrize("rows", [[[], [1, 2], [3]], [[4], [], [5, 6]]])
def test_flatten_refuses_an_id_outside_by_field_and_value(
    token: int, rows: list[list[int]]
) -> None:
    with pytest.raises(RequestError, match=rf"`items`.* {token};.* 0 to {VOCAB - 1}"):
        flatten_ids([*rows, [0, token]], VOCAB, field="items")


@pytest.mark.parametrize("element", [1.0, 1.5, float("nan"), "1", None, [1]])
def test_flatten_refuses_what_is_no_integer(element: object) -> None:
    shown = re.escape(repr(element))
    with pytest.raises(TypeError, match=rf"`items`.* {shown}, which is no token id") as raised:
        flatten_ids([[1], [element]], VOCAB, field="items")  # type: ignore[list-item]
    assert isinstance(raised.value, RequestError)


@pytest.mark.parametrize("ids", [[0], [VOCAB - 1], [3, 0, VOCAB - 1]])
def test_ids_inside_the_vocabulary_pass(ids: list[int]) -> None:
    check_prompt(ids, VOCAB, field="input_ids")


@pytest.mark.parametrize("token", OUTSIDE)
def test_check_refuses_an_id_outside_by_field_and_value(token: int) -> None:
    with pytest.raises(RequestError, match=rf"`input_ids`.* {token};.* 0 to {VOCAB - 1}") as caught:
        check_prompt([1, token, 2], VOCAB, field="input_ids")
    assert caught.value.field == "input_ids"


def test_check_refuses_more_tokens_than_positions() -> None:
    check_positions(512, 512, field="text")
    with pytest.raises(RequestError, match=r"`text`.*513 tokens.*512") as caught:
        check_positions(513, 512, field="text")
    assert caught.value.field == "text"


def test_check_refuses_an_empty_prompt_by_field() -> None:
    with pytest.raises(RequestError, match=r"empty.*`text`") as caught:
        check_prompt([], VOCAB, field="text")
    assert caught.value.field == "text"


def test_as_many_as_allowed_and_no_more() -> None:
    config = PrefillOnlyConfig(max_items=3)
    check_count(3, config)
    with pytest.raises(TooManyItemsError, match=r"prompts: 4 rows .* limit of 3") as caught:
        check_count(4, config, field="prompts", noun="rows")
    assert caught.value.field == "prompts"


@pytest.mark.parametrize(
    "most", [{"tokens": MIB // 2}, {"numbers": MIB // 16}, {"tokens": MIB // 4, "numbers": 2**15}]
)
def test_as_much_memory_as_allowed_and_no_more(most: dict[str, int]) -> None:
    config = PrefillOnlyConfig(max_queued_mib=2)
    check_memory(config, **most)
    for name in most:
        with pytest.raises(RequestError, match=r"limit of 2.*--prefill-only-max-queued-mib"):
            check_memory(config, **(most | {name: most[name] + 1}))


def test_a_text_is_repeated_so_often_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MOST_REPEATED_CHARACTERS", 20)
    check_repeated("a" * 21, ["alone"])
    check_repeated("a" * 10, ["b"] * 3)
    with pytest.raises(RequestError, match="its 11 characters would be repeated for 3 items"):
        check_repeated("a" * 11, ["b"] * 3)


@pytest.mark.parametrize("text", ["a\udc80", ("a", "\ud800")])
def test_texts_that_no_tokenizer_reads_are_refused(text: str | tuple[str, str]) -> None:
    check_unicode(["", "🙂", ("a", "é")])
    with pytest.raises(WrongTypeError, match=r"\\ud.* has lone surrogates"):
        check_unicode(["a", text])

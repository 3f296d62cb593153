from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from sglang_prefill_ext.client.ids import as_forms, token_ids
from sglang_prefill_ext.errors import RequestError


@pytest.mark.parametrize(
    "ids", [[1, 2], (1, 2), np.array([1, 2], np.uint8), np.array([1, 2]), range(1, 3)]
)
def test_token_ids_become_int32(ids: Any) -> None:
    found = token_ids("query", ids, dimensions=(1,))
    assert (found.dtype, found.tolist()) == (np.int32, [1, 2])


def test_an_array_that_is_int32_is_not_copied() -> None:
    ids = np.array([1, 2], "<i4")
    assert token_ids("query", ids, dimensions=(1,)) is ids
    assert token_ids("query", [], dimensions=(1,)).dtype == np.int32


@pytest.mark.parametrize("ids", [[1.5], "1", [None], [[[1]]], [[1], [2, 3]]], ids=str)
@pytest.mark.parametrize(("dimensions", "rows"), [((1,), ""), ((1, 2), " or equally long lists.*")])
def test_what_is_no_list_of_token_ids_is_refused(
    ids: Any, dimensions: tuple[int, ...], rows: str
) -> None:
    with pytest.raises(RequestError, match=rf"query: .* is not a list of token ids{rows}\. Token"):
        token_ids("query", ids, dimensions)


def test_lists_of_token_ids_are_taken_where_they_may_be() -> None:
    assert token_ids("prompts", [[1, 2]], dimensions=(1, 2)).tolist() == [[1, 2]]
    with pytest.raises(RequestError, match="prompts"):
        token_ids("prompts", [[1, 2]], dimensions=(1,))


@pytest.mark.parametrize("ids", [[2**31], [-(2**31) - 1], np.array([2**40])])
def test_what_does_not_fit_is_refused_by_name(ids: Any) -> None:
    with pytest.raises(RequestError, match=r"query: .* does not fit into 32 bits"):
        token_ids("query", ids, dimensions=(1,))


def test_forms_are_little_endian_rows_one_behind_the_other() -> None:
    rows = [np.array(row, "<i4") for row in ([1, 2], [], [3])]
    body = {"query": np.array([7], "<i4"), "items": rows, "other": 1}
    forms = as_forms(body)
    assert forms["other"] == 1
    assert base64.b64decode(forms["query"]["values"]) == b"\x07\x00\x00\x00"
    found = {k: np.frombuffer(base64.b64decode(v), "<i4") for k, v in forms["items"].items()}
    assert found["values"].tolist() == [1, 2, 3]
    assert found["counts"].tolist() == [2, 0, 1]
    texts = {"query": "q", "items": ["a"]}
    assert as_forms(texts) is texts

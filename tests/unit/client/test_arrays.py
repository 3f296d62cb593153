from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from sglang_prefill_ext.client.arrays import EmbedOverrides, as_forms, as_json, token_ids
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.score.score_body import stock_score_body


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


ROWS = np.arange(12, dtype=np.float16).reshape(3, 2, 2)


def read_back(fields: dict[str, Any], items: int = 2) -> dict[str, Any]:
    """The arrays that the server reads from the fields."""
    read = stock_score_body(
        json.dumps({"items": [[1]] * items} | fields, default=as_json).encode(),
        PrefillOnlyConfig(),
    )
    assert read is not None
    return json.loads(read[0]) | read[1].arguments(0)


@pytest.mark.parametrize("items", [ROWS, list(ROWS), ROWS.astype(np.float64), ROWS.astype(">f2")])
def test_each_part_has_the_embeddings_of_its_items(items: Any) -> None:
    overrides = EmbedOverrides(7, query=ROWS[0], items=items)
    for part in (slice(0, 2), slice(2, 4)):
        found = read_back(overrides.fields(part, 3), len(ROWS[part]))
        assert found["embed_override_token_id"] == 7
        assert found["query_embed_overrides"].tolist() == ROWS[0].tolist()
        taken = [each.tolist() for each in found["item_embed_overrides"]]
        assert taken == ROWS[part].tolist()


def test_a_query_may_have_embeddings_alone() -> None:
    fields = EmbedOverrides(7, query=ROWS[0]).fields(slice(0, 3), 3)
    assert fields.keys() == {"embed_override_token_id", "query_embed_overrides"}


def test_halves_are_sent_as_such_and_doubles_as_singles() -> None:
    for sent, arrives in (("f2", "float16"), ("f4", "float32"), ("f8", "float32")):
        overrides = EmbedOverrides(7, items=[None, ROWS[1].astype(sent)])
        found = read_back(overrides.fields(slice(0, 2), 2))
        assert found["item_embed_overrides"][0] is None
        assert found["item_embed_overrides"][1].dtype.name == arrives


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (EmbedOverrides(7, query=ROWS), "query_embed_overrides: .*2 dimensions"),
        (EmbedOverrides(7, query=np.ones((2, 2), int)), "query_embed_overrides: int64 .*floats"),
        (EmbedOverrides(7, query=[[1.0], [1.0, 2.0]]), "query_embed_overrides: "),  # type: ignore[arg-type]
        (EmbedOverrides(7, items=ROWS[:2]), "item_embed_overrides: 2 for 3 items"),
        (EmbedOverrides(7, items=[None, None, ROWS]), r"item_embed_overrides\[2\]: "),
        (EmbedOverrides(7, items=np.ones((3, 2))), "item_embed_overrides: .*3 dimensions"),
        (
            EmbedOverrides(7, items=[np.ones((1, width)) for width in (4, 2, 6)]),
            "embed_overrides: embeddings of 2, 4, 6 numbers",
        ),
    ],
)
def test_other_arrays_are_refused_by_name(overrides: EmbedOverrides, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        overrides.fields(slice(0, 3), 3)

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from sglang_prefill_ext.client.ids import as_json
from sglang_prefill_ext.client.overrides import EmbedOverrides
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.score.score_body import stock_score_body

ROWS = np.arange(12, dtype=np.float16).reshape(3, 2, 2)


def read_back(fields: dict[str, Any], items: int = 2) -> dict[str, Any]:
    """What the server reads of the fields."""
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
    ],
)
def test_other_arrays_are_refused_by_name(overrides: EmbedOverrides, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        overrides.fields(slice(0, 3), 3)

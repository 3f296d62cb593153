from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sglang.srt.managers.embed_types import PositionalEmbeds

from sglang_prefill_ext.border.tokenizer_manager.overrides import (
    check_input_embeds,
    check_overrides,
    vector_arrays,
    with_arrays,
    with_tensors,
)
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.embed.embed_call import EmbedCall
from sglang_prefill_ext.frontend.score.score_call import ScoreCall
from sglang_prefill_ext.wire.arrays import EmbeddingKind

ROW = [0.5, 1.5]
KIND = EmbeddingKind(2, "bfloat16")


@pytest.mark.parametrize(
    ("embeds", "said"),
    [
        ([], "not one list of 2 numbers"),
        ([ROW, [0.5]], "not one list of 2 numbers"),
        ([0.5, 0.5], "not one list of 2 numbers"),
        ([["a", "b"]], "not one list of 2 numbers"),
        ([[0.5, 0.5, 0.5]], "the shape is [1, 3]"),
        ([ROW, [0.5, float("nan")]], "a number is NaN or beyond bfloat16"),
        ([[0.5, 1e39]], "a number is NaN or beyond bfloat16"),
    ],
    ids=str,
)
def test_a_prompt_of_unfit_embeddings_is_refused(embeds: Any, said: str) -> None:
    with pytest.raises(RequestError, match=r"^input_embeds") as refused:
        check_input_embeds(embeds, KIND)
    assert said in str(refused.value)


@pytest.mark.parametrize("embeds", [[ROW], [ROW, ROW], [[1, 2]], np.ones((3, 2))], ids=str)
def test_a_prompt_of_embeddings_is_taken_in_bfloat16_alone(embeds: Any) -> None:
    check_input_embeds(embeds, KIND)
    with pytest.raises(RequestError, match="computes in float16"):
        check_input_embeds(embeds, EmbeddingKind(2, "float16"))


@pytest.mark.parametrize(
    ("dtype", "arrives"),
    [
        (torch.float16, np.float16),
        (torch.bfloat16, np.float32),
        (torch.float32, np.float32),
        (torch.float64, np.float64),
        (torch.int64, np.int64),
    ],
)
def test_tensors_become_arrays(dtype: torch.dtype, arrives: type) -> None:
    row = torch.tensor([1, 2], dtype=dtype)
    call = ScoreCall(query_embed_overrides=[row], item_embed_overrides=[None, [row[None]]])
    arrays = with_arrays(call)
    assert arrays.query_embed_overrides[0].dtype == arrives
    assert arrays.query_embed_overrides[0].tolist() == [1, 2]
    assert arrays.item_embed_overrides[0] is None
    assert arrays.item_embed_overrides[1][0].tolist() == [[1, 2]]
    positional = [None, PositionalEmbeds([row], [3])]
    vectors = vector_arrays(
        EmbedCall([[1], [1]], False, None, positional, placeholder=1, embeds=[None, [row]])
    )
    assert vectors.positional is not None
    assert vectors.embeds is not None
    (nothing, at), (none, (of_placeholder,)) = vectors.positional, vectors.embeds
    assert nothing is none is None
    assert (at.positions, at.embeds.tolist(), at.embeds.dtype) == ([3], [[1, 2]], arrives)
    assert (of_placeholder.tolist(), of_placeholder.dtype) == ([1, 2], arrives)


def test_arrays_become_the_tensors_that_stock_joins() -> None:
    halves = np.array([ROW, ROW], np.float16)
    call = ScoreCall(query_embed_overrides=halves, item_embed_overrides=[halves[:1], None])
    tensors = with_tensors(call)
    assert [each.tolist() for each in tensors.query_embed_overrides] == [ROW, ROW]
    assert {each.dtype for each in tensors.query_embed_overrides} == {torch.float32}
    assert [each.tolist() for each in tensors.item_embed_overrides[0]] == [ROW]
    assert tensors.item_embed_overrides[1] is None
    shared = with_tensors(ScoreCall(item_embed_overrides=[halves, halves])).item_embed_overrides
    assert shared[0] is shared[1]
    plain = ScoreCall(query="q")
    assert with_tensors(plain) is with_arrays(plain) is plain


def _replacing(*embeds: torch.Tensor) -> Any:
    return SimpleNamespace(embed_overrides=[*embeds], embed_override_token_id=0)


@pytest.mark.parametrize(
    ("obj", "wrong"),
    [
        (SimpleNamespace(), False),
        (SimpleNamespace(positional_embed_overrides=None, embed_overrides=None), False),
        (SimpleNamespace(positional_embed_overrides=PositionalEmbeds([torch.ones(2)], [0])), False),
        (SimpleNamespace(positional_embed_overrides=PositionalEmbeds([torch.ones(3)], [0])), True),
        (SimpleNamespace(embed_overrides="x", embed_override_token_id=None), False),
        (_replacing(torch.ones(2), torch.ones(2)), False),
        (_replacing(torch.ones(2), torch.tensor([1, torch.nan])), True),
        (_replacing(torch.tensor([1, 3.3961e38])), False),
        (_replacing(torch.tensor([1, 3.3962e38])), True),
    ],
)
def test_the_stock_path_is_kept_from_other_embeddings(obj: Any, wrong: bool) -> None:
    if not wrong:
        check_overrides(obj, KIND)
        return
    with pytest.raises(RequestError, match="embed_overrides"):
        check_overrides(obj, KIND)

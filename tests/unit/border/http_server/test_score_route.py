"""What is read and written at once must be what SGLang's own objects make of it."""

from __future__ import annotations

import json
import warnings
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.frontend.score.score_api import answer_body, read_request
from sglang_prefill_ext.frontend.score.score_frontend import Scored
from sglang_prefill_ext.wire.packed import NO_INTS, PackedRows, int_array

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # SGLang's, about kernels that this machine lacks
    from sglang.srt.entrypoints.openai.protocol import ScoringRequest, ScoringResponse, UsageInfo

_IDS = st.lists(st.integers(-(2**63), 2**63 - 1))
_BODIES = st.fixed_dictionaries(
    {
        "items": st.text() | st.lists(st.text()) | st.lists(_IDS),
        "label_token_ids": _IDS | st.lists(_IDS),
    },
    optional={
        "query": st.none() | st.text() | _IDS,
        "apply_softmax": st.booleans(),
        "temperature": st.floats(1e-3, 10),
        "return_token_logprobs": st.booleans(),
        "item_first": st.booleans(),
        "model": st.text(),
    },
)
_MATRIX = st.lists(st.lists(st.floats()))
_ROWS = PackedRows(int_array([1]), 0, int_array([1]), int_array([1]), NO_INTS)
_ANSWER: Any = None  # says where the scores come from, which is not written


@given(_BODIES)
def test_the_same_call_as_from_sglang(body: dict[str, Any]) -> None:
    read = read_request(json.dumps(body).encode(), None)
    assert read is not None
    call, model = read
    wanted = ScoringRequest.model_validate(body)
    fields = {name for name in type(call).__slots__ if name in ScoringRequest.model_fields}
    assert {name: getattr(call, name) for name in fields} == {
        name: getattr(wanted, name) for name in fields
    }
    assert model == wanted.model


@given(_MATRIX, st.none() | _MATRIX, st.integers(0, 10**6), st.text())
def test_the_same_answer_as_from_sglang(
    scores: list[list[float]], logprobs: list[list[float]] | None, tokens: int, model: str
) -> None:
    usage = UsageInfo(prompt_tokens=tokens, total_tokens=tokens)
    scored = Scored(scores, tokens, logprobs, _ROWS, _ANSWER)
    written = answer_body(scored, model=model, usage=usage.model_dump())
    response = ScoringResponse(scores=scores, token_logprobs=logprobs, model=model, usage=usage)
    wanted = orjson.dumps(response.model_dump())
    assert list(json.loads(written).items()) == list(json.loads(wanted).items())


@pytest.mark.parametrize("count", [16, 17, 32, 33])
def test_many_rows_are_written_some_at_a_time(count: int) -> None:
    rows = [[number / 4, -0.0] for number in range(count)]
    written = json.loads(answer_body(Scored(rows, 1, [[]], _ROWS, _ANSWER), model="m", usage={}))
    assert (written["scores"], written["token_logprobs"]) == (rows, [[]])

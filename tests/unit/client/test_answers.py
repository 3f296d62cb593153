from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from sglang_prefill_ext.client.answers import (
    error_of,
    join_scores,
    message_of,
    read_classes,
    read_embeddings,
    read_scores,
)
from sglang_prefill_ext.errors import (
    DeadlineExceededError,
    PrefillExtError,
    ServerBusyError,
    ServerRefusedError,
    ServerUnavailableError,
    UnexpectedAnswerError,
)


@given(arrays("<f4", array_shapes(min_dims=2, max_dims=2), elements=st.floats(-1, 1, width=32)))
def test_base64_is_read_bit_by_bit(vectors: Any) -> None:
    data = [{"embedding": base64.b64encode(row.tobytes()).decode()} for row in vectors]
    found = read_embeddings({"data": data}, len(vectors))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, vectors)


def test_scores_without_log_probabilities() -> None:
    answer = {"scores": [[0.5, 0.25]], "token_logprobs": None, "usage": {"prompt_tokens": 7}}
    scores = join_scores([read_scores(answer, 1), read_scores(answer, 1)])
    assert scores.token_logprobs is None
    assert scores.scores.tolist() == [[0.5, 0.25]] * 2
    assert scores.prompt_tokens == 14


def test_scores_of_something_else_than_the_labels_are_refused() -> None:
    part = read_scores({"scores": [[0.5, 0.25, 0.25]], "usage": {"prompt_tokens": 7}}, 1)
    assert join_scores([part]).scores.shape == join_scores([part], 3).scores.shape
    with pytest.raises(UnexpectedAnswerError, match="3 for each item, and not for 2 labels"):
        join_scores([part], 2)


def test_log_probabilities_are_joined_like_scores() -> None:
    parts = [
        {"scores": [[0.5]], "token_logprobs": [[-value]], "usage": {"prompt_tokens": 7}}
        for value in (1.0, 2.0)
    ]
    found = join_scores([read_scores(part, 1) for part in parts]).token_logprobs
    assert found is not None
    assert found.tolist() == [[-1.0], [-2.0]]


def test_the_class_of_a_cross_encoder_is_a_number() -> None:
    assert read_classes([{"embedding": 1.5}, {"embedding": -2.0}], 2).tolist() == [[1.5], [-2.0]]


@pytest.mark.parametrize(
    "answer",
    [
        [],
        [{"embedding": [1.0]}],
        [{"embedding": [[1.0]]}, {"embedding": [[2.0]]}],
        [{"embedding": [1.0]}, {"embedding": [1.0, 2.0]}],
    ],
)
def test_an_answer_of_another_shape_is_not_taken(answer: Any) -> None:
    with pytest.raises(ValueError, match=r"instead of 2 rows|inhomogeneous"):
        read_classes(answer, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"object": "error", "message": "no such token", "code": 400}', "no such token"),
        ('{"error": {"message": "too long", "type": "x"}}', "too long"),
        ('{"error": "Unauthorized"}', "Unauthorized"),
        ('{"detail": "Not Found"}', "Not Found"),
        ('{"detail": [{"msg": "bad"}]}', '[{"msg": "bad"}]'),
        ('{"code": 3}', '{"code": 3}'),
        (" upstream\ngone \n", "upstream\ngone"),
        ("", "(no message)"),
        ("x" * 600, "x" * 500),
    ],
)
def test_the_message_is_found_in_every_shape(text: str, message: str) -> None:
    assert message_of(text) == message


@given(st.recursive(st.none() | st.text(), lambda x: st.dictionaries(st.text(), x)))
def test_any_body_has_a_message(body: Any) -> None:
    assert message_of(json.dumps(body))


@pytest.mark.parametrize(
    ("status", "kind", "remedy"),
    [
        (429, ServerBusyError, "why. Try again later"),
        (503, ServerUnavailableError, "why. Try again when the server is ready"),
        (504, DeadlineExceededError, "why. Give it a longer timeout_s"),
        (400, ServerRefusedError, "why"),
        (401, ServerRefusedError, "why. Give the server's key"),
        (404, ServerRefusedError, "why. Check the address"),
        (500, ServerRefusedError, "why"),
    ],
)
def test_every_status_has_its_error(status: int, kind: type[PrefillExtError], remedy: str) -> None:
    error = error_of("/v1/score with 1 item", status, {}, '{"message": "why"}')
    assert type(error) is kind
    assert str(error).startswith(f"/v1/score with 1 item: HTTP {status}: why")
    assert remedy in str(error)
    assert ("api_key" in str(error)) == (status == 401)
    if isinstance(error, ServerRefusedError):
        assert (error.status, error.message) == (status, "why")


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("Wed, 21 Oct 2026 07:28:00 GMT", 0.0), ("-1", 0.0), ("9" * 40, 0.0), ("", 0.0)],
)
def test_retry_after_is_read(status: int, header: str, seconds: float) -> None:
    error = error_of("a", status, {"retry-after": header}, "")
    assert isinstance(error, ServerBusyError | ServerUnavailableError)
    assert error.retry_after_s == seconds

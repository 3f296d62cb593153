from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from sglang_prefill_ext.frontend.answers import Served
from sglang_prefill_ext.frontend.embed.embed_call import EmbedCall
from sglang_prefill_ext.frontend.embed.embed_frontend import Embedded
from sglang_prefill_ext.frontend.embed.embeddings_api import (
    EmbeddingsRequest,
    answer_body,
    read_request,
)
from sglang_prefill_ext.wire.arrays import int_array


def read(**fields: Any) -> EmbeddingsRequest | None:
    return read_request(json.dumps({"model": "m"} | fields).encode())


@pytest.mark.parametrize(
    ("fields", "call"),
    [
        ({"input": "a b"}, EmbedCall(["a b"], True, None)),
        ({"input": ["a", "ÿ 東京"]}, EmbedCall(["a", "ÿ 東京"], False, None)),
        ({"input": [5, 0, 7]}, EmbedCall([[5, 0, 7]], True, None)),
        ({"input": "a", "dimensions": 8, "user": "u"}, EmbedCall(["a"], True, 8)),
    ],
)
def test_plain_requests_are_read(fields: dict[str, Any], call: EmbedCall) -> None:
    assert read(**fields) == EmbeddingsRequest(call, as_base64=False)
    assert read(**fields, encoding_format="base64") == EmbeddingsRequest(call, as_base64=True)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"input": ""},
        {"input": " "},
        {"input": []},
        {"input": ["a", " "]},
        {"input": ["a", 1]},
        {"input": [1, -1]},
        {"input": [1, True]},
        {"input": [1, 2**63]},
        {"input": "a", "dimensions": 2**63},
        {"input": [[1], [2]]},
        {"input": [{"text": "a"}]},
        {"input": None},
        {"input": "a", "model": "base:adapter"},
        {"input": "a", "encoding_format": "int8"},
        {"input": "a", "dimensions": "8"},
        {"input": "a", "rid": "x"},
        {"input": "a", "priority": 3},
        {"input": "a", "lora_path": None},
        {"input": "a", "unheard_of": 1},
    ],
    ids=str,
)
def test_everything_else_is_left_to_sglang(fields: dict[str, Any]) -> None:
    assert read(**fields) is None


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"a"', b'{"input": "\xff"}', b"null"])
def test_what_is_no_such_body_is_left_to_sglang(body: bytes) -> None:
    assert read_request(body) is None


def test_an_answer_has_all_numbers_in_full() -> None:
    vectors = [[float(np.float32(0.1)), -1e-30], [3.0, 0.0]]
    embedded = Embedded(vectors, Served(int_array([2, 3]), int_array([0, 0])), 4)
    body = json.loads(answer_body(embedded, as_base64=False, model="m"))
    assert body == {
        "object": "list",
        "model": "m",
        "usage": {
            "prompt_tokens": 5,
            "total_tokens": 5,
            "completion_tokens": 0,
            "prompt_tokens_details": None,
            "reasoning_tokens": 0,
            "completion_tokens_details": None,
        },
        "data": [
            {"object": "embedding", "index": 0, "embedding": vectors[0]},
            {"object": "embedding", "index": 1, "embedding": vectors[1]},
        ],
    }
    packed = json.loads(answer_body(embedded, as_base64=True, model="m"))
    decoded = np.frombuffer(base64.b64decode(packed["data"][0]["embedding"]), dtype="<f4")
    assert decoded.tolist() == np.float32(vectors[0]).tolist()

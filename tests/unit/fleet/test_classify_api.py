from __future__ import annotations

import pytest

from sglang_prefill_ext.fleet.classify_api import read_native, read_openai


def test_a_body_too_deep_to_read_is_left_to_sglang() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert read_openai(b'{"input": "a"}') is not None
    assert read_openai(b'{"input": "a", "ignored": %s}' % deep) is None


@pytest.mark.parametrize("more", [b'"rid": "a"', b'"priority": 0', b'"user": 1', b'"input": 1'])
def test_what_only_sglang_serves_or_refuses_is_left_to_it(more: bytes) -> None:
    assert read_openai(b'{"input": "a", "user": "b", "unknown": 1}') is not None
    assert read_openai(b'{"input": "a", %s}' % more) is None


@pytest.mark.parametrize(
    "body", [b"{}", b'{"text": "a", "rid": "b"}', b'{"input_ids": [], "text": ""}']
)
def test_a_native_body_has_texts_or_ids_and_nothing_else(body: bytes) -> None:
    assert read_native(b'{"text": ["a"]}') is not None
    assert read_native(b'{"input_ids": [1]}') is not None
    assert read_native(body) is None

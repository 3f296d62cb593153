from __future__ import annotations

from sglang_prefill_ext.fleet.classify_api import read_openai


def test_a_body_too_deep_to_read_is_left_to_sglang() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert read_openai(b'{"input": "a"}') is not None
    assert read_openai(b'{"input": "a", "ignored": %s}' % deep) is None

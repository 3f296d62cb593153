from __future__ import annotations

import pytest

from sglang_prefill_ext.frontend.score.score_body import fields_of


def test_the_fields_of_a_marked_body() -> None:
    assert fields_of(b'{"a": {"mark": 1}, "b": [2], "a": 3}', b"mark") == {"a": 3, "b": [2]}
    assert fields_of(b'{"a": 1}', b"mark") == {}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'"mark"',
        b'["mark"]',
        b'{"mark": ',
        b'{"mark": "\xff"}',
        b'{"mark": "\\ud800"}',
        b'{"mark": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"mark": ' * 50_000 + b"1" + b"}" * 50_000,
    ],
    ids=["nothing", "text", "list", "cut-off", "utf-8", "surrogate", "deep-list", "deep-object"],
)
def test_what_cannot_be_read_has_no_fields(body: bytes) -> None:
    assert fields_of(body, b"mark") == {}

from __future__ import annotations

from sglang_prefill_ext.attention.inputs import HeadShape


def test_query_heads_of_a_key_head() -> None:
    assert HeadShape(8, 2, 64, 64).group_size == 4

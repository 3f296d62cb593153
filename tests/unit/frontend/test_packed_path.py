from __future__ import annotations

import pytest

from sglang_prefill_ext.frontend.packed_path import served_rows
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows
from sglang_prefill_ext.wire.read import Labels
from sglang_prefill_ext.wire.status import Status


@pytest.mark.parametrize(("in_cache", "of_each"), [(0, 0), (2, 2), (3, 3), (9, 3)])
def test_what_is_cached_of_a_prefix_is_cached_of_every_row(in_cache: int, of_each: int) -> None:
    rows = PackedRows(int_array([1, 2, 3, 4, 5, 6]), 3, int_array([2, 1]), Labels(int_array([7])))
    answer = PackedResult(Status.OK, queue_ms=250, compute_ms=500, tokens_cached=in_cache)
    served = served_rows(rows, answer)
    assert served.prompt_tokens.tolist() == [5, 4]
    assert served.cached_tokens.tolist() == [of_each] * 2
    assert (served.num_prompts, served.new_tokens) == (2, 0)
    assert (served.queue_s, served.compute_s) == (0.25, 0.5)

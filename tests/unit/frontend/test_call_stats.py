from __future__ import annotations

import numpy as np
import pytest

from sglang_prefill_ext.frontend.batch_exchange import ReadOut
from sglang_prefill_ext.frontend.call_stats import served_prompts, served_rows
from sglang_prefill_ext.wire.packed import NO_INTS, PackedRows, int_array
from sglang_prefill_ext.wire.result import PackedResult
from sglang_prefill_ext.wire.status import Status


@pytest.mark.parametrize(("in_cache", "of_each"), [(0, 0), (2, 2), (3, 3), (9, 3)])
def test_what_is_cached_of_a_prefix_is_cached_of_every_row(in_cache: int, of_each: int) -> None:
    rows = PackedRows(int_array([1, 2, 3, 4, 5, 6]), 3, int_array([2, 1]), int_array([7]), NO_INTS)
    answer = PackedResult(Status.OK, queue_ms=250, compute_ms=500, tokens_cached=in_cache)
    served = served_rows(rows, answer)
    assert served.prompt_tokens.tolist() == [5, 4]
    assert served.cached_tokens.tolist() == [of_each] * 2
    assert (served.num_prompts, served.new_tokens) == (2, 0)
    assert (served.queue_s, served.compute_s) == (0.25, 0.5)


def test_prompts_that_are_read_apart_have_their_own_cached_tokens() -> None:
    read_outs = [
        ReadOut(np.zeros((1, 1), np.float32), cached, 0.1 * cached, 1 - 0.1 * cached)
        for cached in (0, 4)
    ]
    served = served_prompts([3, 8], read_outs, new_tokens=1)
    assert served.prompt_tokens.tolist() == [3, 8]
    assert served.cached_tokens.tolist() == [0, 4]
    assert (served.num_prompts, served.new_tokens) == (2, 1)
    assert (served.queue_s, served.compute_s) == (0.4, 1.0)

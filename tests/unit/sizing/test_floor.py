from __future__ import annotations

from sglang_prefill_ext.sizing.forward import (
    kv_numbers,
    packed_bytes,
    packed_operations,
)
from sglang_prefill_ext.sizing.model import Experts, ModelShape
from sglang_prefill_ext.sizing.shape import Shape


def test_of_experts_the_active_ones_compute_and_those_with_tokens_are_read() -> None:
    dense = ModelShape(2, 4, 2, 1, 3, 5, 7)
    sparse = ModelShape(2, 4, 2, 1, 3, 5, 7, Experts(count=8, active=1, width=5))
    shape, router = Shape(3, 2, 4), 2 * 4 * 8
    # A router more in the first layer, for all 11 tokens, and in the last one for 4 rows.
    more = packed_operations(sparse, shape, 2) - packed_operations(dense, shape, 2)
    assert more == 11 * router + 4 * router
    numbers = sparse.read_weights(22) + kv_numbers(sparse, 22) + 2 * 4
    assert packed_bytes(sparse, shape, 2, number_bytes=2, requests=2) == 2 * numbers

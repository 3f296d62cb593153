from __future__ import annotations

from dataclasses import replace

from sglang_prefill_ext.sizing.layer_sizes import Experts, Recurrent
from sglang_prefill_ext.sizing.model import ModelShape
from sglang_prefill_ext.sizing.shape import Shape
from sglang_prefill_ext.sizing.work import kv_numbers, packed_bytes, packed_operations


def test_of_experts_the_active_ones_compute_and_those_with_tokens_are_read() -> None:
    dense = ModelShape(2, 4, 2, 1, 3, 5, 7)
    sparse = ModelShape(2, 4, 2, 1, 3, 5, 7, Experts(count=8, active=1, width=5))
    shape, router = Shape(3, 2, 4), 2 * 4 * 8
    # A router more in the first layer, for all 11 tokens, and in the last one for 4 rows.
    more = packed_operations(sparse, shape, 2) - packed_operations(dense, shape, 2)
    assert more == 11 * router + 4 * router
    numbers = sparse.read_weights(22) + kv_numbers(sparse, 22) + 2 * 4
    assert packed_bytes(sparse, shape, 2, number_bytes=2, requests=2) == 2 * numbers


def test_traffic_of_states_by_hand() -> None:
    recurrent = Recurrent(3, 2, 8, 4, 16, 4)
    model = ModelShape(4, 256, 8, 4, 32, 704, 8000, recurrent=recurrent)
    shape = Shape.parse("60+100x5")
    plain = packed_bytes(replace(model, recurrent=None), shape, 2, 2)
    others = model.read_weights(560) - replace(model, recurrent=None).read_weights(560)
    others += kv_numbers(model, 560) - kv_numbers(replace(model, recurrent=None), 560)
    # Five rows start from a state; the prefix has one chunk, each row two.
    states = 3 * (4 * 16 * 8) * (5 * 4 + (1 + 5 * 2) * 2 * 2)
    assert packed_bytes(model, shape, 2, 2) == plain + 2 * others + states

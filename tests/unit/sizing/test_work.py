from __future__ import annotations

from typing import Any

import pytest

from sglang_prefill_ext.sizing.model import ModelShape
from sglang_prefill_ext.sizing.recurrences import DeltaRule, ShortConvolution, StateSpace
from sglang_prefill_ext.sizing.shape import Shape
from sglang_prefill_ext.sizing.work import kv_numbers, packed_bytes, packed_operations
from tests.unit.sizing.models import DELTA, decoder, experts

SIZES = (4, 256, 8, 4, 32, 704, 8000)


def test_of_experts_the_active_ones_compute_and_those_with_tokens_are_read() -> None:
    dense = decoder(2, 4, 2, 1, 3, 5, 7)
    sparse = decoder(2, 4, 2, 1, 3, 5, 7, **experts(8, 1, 5))
    shape, router = Shape(3, 2, 4), 2 * 4 * 8
    # A router more in the first layer, for all 11 tokens, and in the last one for 4 rows.
    more = packed_operations(sparse, shape, 2) - packed_operations(dense, shape, 2)
    assert more == 11 * router + 4 * router
    numbers = sparse.read_weights(22) + kv_numbers(sparse, 22) + 2 * 4
    assert packed_bytes(sparse, shape, 2, number_bytes=2, requests=2) == 2 * numbers


def test_operations_of_states_by_hand() -> None:
    shape, of_weights = Shape(3, 2, 4), 2 * 11  # tokens
    delta = DeltaRule(256, key_heads=2, key_dim=16, value_heads=4, value_dim=8, conv_width=4)
    mamba = StateSpace(256, heads=8, head_dim=64, groups=1, state_size=16, conv_width=4, chunk=256)
    # Of each token, three products with a state, or two.
    assert delta.operations(shape) == of_weights * (delta.weights + 3 * (4 * 16 * 8))
    assert mamba.operations(shape) == of_weights * (mamba.weights + 2 * (8 * 64 * 16))


def test_traffic_of_states_by_hand() -> None:
    model, plain = decoder(*SIZES, **DELTA), decoder(*SIZES)
    shape = Shape.parse("60+100x5")
    others = model.read_weights(560) - plain.read_weights(560)
    others += kv_numbers(model, 560) - kv_numbers(plain, 560)
    # Five rows start from a state; the prefix has one chunk, each row two.
    states = 3 * (4 * 16 * 8) * (5 * 4 + (1 + 5 * 2) * 2 * 2)
    assert packed_bytes(model, shape, 2) == packed_bytes(plain, shape, 2) + 2 * others + states


def test_traffic_of_mamba_by_hand() -> None:
    layer = StateSpace(256, heads=8, head_dim=64, groups=1, state_size=16, conv_width=4, chunk=256)
    # 120 tokens of two prefixes are one chunk; 1000 of ten rows, which start from states, are four.
    state_bytes = 4 * (8 * 64 * 16)
    assert layer.state_bytes(Shape.parse("60+100x5"), 2, 2) == state_bytes * (10 + 2 * (1 + 4))
    assert ShortConvolution(256, 3).state_bytes(Shape.parse("60+100x5"), 2, 2) == 0


@pytest.mark.parametrize(
    ("kinds", "at_all_tokens"),
    [
        # The last layer has keys and values of 11 tokens, and all else at 4 rows.
        (["conv", "full_attention"], lambda conv, own, kv, mlp: conv + mlp + kv),
        # A convolution reads the tokens of a layer before it.
        (["full_attention", "conv"], lambda conv, own, kv, mlp: own + mlp + conv),
    ],
)
def test_what_only_read_positions_need_depends_on_the_last_layer(
    kinds: list[str], at_all_tokens: Any
) -> None:
    model = decoder(2, 4, 2, 1, 3, 5, 7, layer_types=kinds, conv_L_cache=3)
    shape = Shape(3, 2, 4)
    conv, own, kv, mlp = 4 * (4 * 4 + 3), 72, 24, 60
    tokens = at_all_tokens(conv, own, kv, mlp)
    rows = conv + own + 2 * mlp - tokens
    # Six pairs in the prefix, and each row has two by three with it and three of its own; or each
    # of four rows has five with all before it.
    pairs = (6 + 4 * 9) if kinds[0] == "full_attention" else 4 * 5
    wanted = 11 * 2 * tokens + 4 * 2 * rows + pairs * 24 + 4 * 2 * 4 * 2
    assert packed_operations(model, shape, 2) == wanted


def test_a_window_bounds_the_pairs() -> None:
    full = decoder(2, 4, 2, 1, 3, 5, 7)
    shape, pair = Shape(3, 2, 4), 24
    windows = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 2}
    model = decoder(2, 4, 2, 1, 3, 5, 7, **windows)
    # Tokens of the first layer see one, two, two; then two each. Each row's last one sees two, too.
    fewer = (6 + 4 * 9) - (5 + 4 * 4) + 4 * (5 - 2)
    more = packed_operations(full, shape, 2) - packed_operations(model, shape, 2)
    assert more == fewer * pair
    assert packed_bytes(full, shape, 2) == packed_bytes(model, shape, 2)


def test_keys_and_values_of_an_earlier_layer_are_only_read() -> None:
    shared: ModelShape = decoder(4, 4, 2, 1, 3, 5, 7, num_kv_shared_layers=3)
    assert kv_numbers(shared, 10) == 10 * 6 * (2 + 3)

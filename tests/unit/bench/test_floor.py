from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.floor import host_costs, least_ms, operation_ratio, stock_bytes, stock_operations
from sglang_prefill_ext.sizing.model import ModelShape
from sglang_prefill_ext.sizing.shape import Shape
from sglang_prefill_ext.sizing.work import packed_bytes, packed_operations
from tests.unit.sizing.models import decoder

# One layer, hidden 4, two heads of 3 sharing one key/value head, MLP 5, 7 tokens.
SMALL = decoder(layers=1, hidden=4, heads=2, kv_heads=1, head_dim=3, intermediate=5, vocabulary=7)
sizes = st.integers(1, 30)
models = st.builds(decoder, *[st.integers(1, 8)] * 6, st.integers(2, 50))
shapes = st.builds(Shape, sizes, st.integers(0, 30), sizes)


def test_stock_and_packed_by_hand() -> None:
    shape = Shape(query_tokens=3, item_tokens=2, items=4)
    # Stock: 4 rows of 5 tokens with 1+2+3+4+5 pairs, each normalised over all 7 tokens.
    stock = 4 * (5 * 264 + 15 * 24 + 56)
    assert stock_operations(SMALL, shape) == stock
    # Packed, the last layer: K and V of 3 + 4*2 tokens, the rest of 4 tokens that see 5 each.
    last = 11 * 48 + 4 * (264 - 48) + 4 * 5 * 24
    assert packed_operations(SMALL, shape, labels=2) == last + 4 * 16
    # Any other layer: all of 11 tokens; 6 pairs in the prefix, each row 2*3 to it, 3 of its own.
    three = decoder(3, 4, 2, 1, 3, 5, 7)
    other = 11 * 264 + (6 + 4 * 9) * 24
    assert packed_operations(three, shape, labels=2) == 2 * other + last + 4 * 16
    assert operation_ratio(SMALL, shape, labels=2) == pytest.approx(stock / (last + 64))


def test_bytes_by_hand() -> None:
    shape = Shape(query_tokens=3, item_tokens=2, items=4)
    # Of every token K and V of 3 numbers each, written and read.
    assert packed_bytes(SMALL, shape, labels=2, number_bytes=2) == 2 * (132 + 11 * 12 + 2 * 4)
    assert stock_bytes(SMALL, shape, weight_bytes=2) == 2 * (132 + 20 * 12 + 7 * 4)


def test_layers_multiply_all_but_the_readout() -> None:
    shape = Shape(3, 2, 4)
    three = decoder(3, 4, 2, 1, 3, 5, 7)
    assert stock_operations(three, shape) - 4 * 56 == 3 * (stock_operations(SMALL, shape) - 4 * 56)


@given(models, shapes, st.integers(1, 2))
def test_packed_never_needs_more(model: ModelShape, shape: Shape, labels: int) -> None:
    assert operation_ratio(model, shape, labels) >= 1.0
    assert packed_bytes(model, shape, labels) <= stock_bytes(model, shape, 2)


@pytest.mark.parametrize(
    ("shape", "tokens", "way"),
    [
        ("62+0x1", 62, "packed, graph"),
        ("60+2x50", 160, "packed, graph"),
        ("120+180x10", 1920, "packed, graph"),
        ("50+150x50", 7550, "packed, graph"),
        ("50+400x50", 20050, "packed, eager"),
    ],
)
def test_forwards_are_replayed_up_to_the_largest_graph(shape: str, tokens: int, way: str) -> None:
    sizes = Shape.parse(shape)
    assert sizes.packed_tokens == tokens
    taken = [name for name, _, mark in host_costs(28, sizes) if mark]
    assert taken == [way]


def test_the_floor_is_the_slower_of_arithmetic_and_traffic() -> None:
    assert least_ms(2 * 10**9, 10**6, tflops=1, gb_per_s=1) == 2.0
    assert least_ms(10**9, 3 * 10**6, tflops=1, gb_per_s=1) == 3.0

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.floor import ModelShape, operation_ratio, packed_operations, stock_operations
from bench.workloads import Shape

# One layer, hidden 4, two heads of 3 sharing one key/value head, MLP 5, 7 tokens.
SMALL = ModelShape(
    layers=1, hidden=4, heads=2, kv_heads=1, head_dim=3, intermediate=5, vocabulary=7
)
sizes = st.integers(1, 30)
models = st.builds(ModelShape, *[st.integers(1, 8)] * 6, st.integers(2, 50))
shapes = st.builds(Shape, sizes, st.integers(0, 30), sizes)


def test_operations_by_hand() -> None:
    # Weights: Q 4x6, K and V 4x3 each, output 6x4, gate, up and down 4x5 each: 132 in all.
    assert SMALL.token_operations == 2 * (24 + 12 + 12 + 24 + 3 * 20)
    # Per pair and head a dot product and a weighted sum of 3 numbers each.
    assert SMALL.pair_operations == 2 * (3 + 3) * 2
    assert SMALL.readout_operations(7) == 2 * 4 * 7


def test_stock_and_packed_by_hand() -> None:
    shape = Shape(query_tokens=3, item_tokens=2, items=4)
    # Stock: 4 rows of 5 tokens with 1+2+3+4+5 pairs, each normalised over all 7 tokens.
    assert stock_operations(SMALL, shape) == 4 * (5 * 264 + 15 * 24 + 56)
    # Packed: 3 + 4*2 tokens; 6 pairs in the prefix, each row 2*3 to it and 3 of its own.
    assert packed_operations(SMALL, shape, labels=2) == 11 * 264 + (6 + 4 * 9) * 24 + 4 * 16
    assert operation_ratio(SMALL, shape, labels=2) == pytest.approx(6944 / 3976)


def test_layers_multiply_all_but_the_readout() -> None:
    shape = Shape(3, 2, 4)
    three = ModelShape(3, 4, 2, 1, 3, 5, 7)
    assert stock_operations(three, shape) - 4 * 56 == 3 * (stock_operations(SMALL, shape) - 4 * 56)


@given(models, st.integers(1, 40), st.integers(0, 40))
def test_one_row_differs_only_in_the_readout(model: ModelShape, query: int, item: int) -> None:
    shape = Shape(query, item, 1)
    all_columns = packed_operations(model, shape, model.vocabulary)
    assert all_columns == stock_operations(model, shape)


@given(models, shapes)
def test_packed_needs_least_and_saves_only_repeated_prefixes(
    model: ModelShape, shape: Shape
) -> None:
    saved = stock_operations(model, shape) - packed_operations(model, shape, model.vocabulary)
    prefix = shape.prefix_tokens
    once = prefix * model.token_operations + prefix * (prefix + 1) // 2 * model.pair_operations
    assert saved == (shape.items - 1) * once
    assert operation_ratio(model, shape, 2) >= 1.0


def test_sizes_are_read_from_the_configuration(tmp_path: Path) -> None:
    config = {
        "num_hidden_layers": 4,
        "hidden_size": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "intermediate_size": 704,
        "vocab_size": 8000,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert ModelShape.from_directory(tmp_path) == ModelShape(4, 256, 8, 4, 32, 704, 8000)
    (tmp_path / "config.json").write_text(json.dumps(config | {"head_dim": 64}))
    assert ModelShape.from_directory(tmp_path).head_dim == 64

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.sizing.shape import Shape

shapes = st.builds(Shape, st.integers(1, 40), st.integers(0, 40), st.integers(1, 20))


@given(shapes)
def test_shape_is_read_as_it_is_written(shape: Shape) -> None:
    assert Shape.parse(str(shape)) == shape


def test_shape_sizes() -> None:
    assert Shape.parse("60+2x50") == Shape(query_tokens=60, item_tokens=2, items=50)
    assert Shape(60, 2, 50).row_tokens == 62
    assert Shape(60, 2, 50).prefix_tokens == 60
    assert Shape(62, 0, 1).prefix_tokens == 61  # a row keeps a token of its own


@pytest.mark.parametrize("text", ["", "60", "60+2", "0+2x50", "60+2x0", "60+2x50 ", "-1+2x3"])
def test_wrong_shape_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ConfigError, match=r"write <query>\+<item>x<items>"):
        Shape.parse(text)


@given(shapes)
def test_pairs_are_those_that_attend(shape: Shape) -> None:
    prefix, suffix = shape.prefix_tokens, shape.suffix_tokens
    before = sum(range(1, prefix + 1))
    own = sum(range(prefix + 1, prefix + suffix + 1))
    assert shape.packed_pairs == before + shape.items * own


@given(shapes, st.integers(1, 90))
def test_a_window_leaves_out_what_lies_further_back(shape: Shape, window: int) -> None:
    prefix, suffix = shape.prefix_tokens, shape.suffix_tokens
    seen = [min(token, window) for token in range(1, prefix + suffix + 1)]
    assert shape.pairs_within(window) == sum(seen[:prefix]) + shape.items * sum(seen[prefix:])

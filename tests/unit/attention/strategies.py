"""Random layouts of one forward."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from sglang_prefill_ext.layout.tokens import ForwardLayout, GroupSpan


def group(held: int, fresh: int, *suffix_lens: int) -> GroupSpan:
    return GroupSpan(held, fresh, np.array(suffix_lens, dtype=np.int32))


def layout(*groups: tuple[int, ...]) -> ForwardLayout:
    """Groups as `(held, fresh, *suffix_lens)`."""
    return ForwardLayout(tuple(group(*lens) for lens in groups))


_prefix_lens = st.one_of(st.just(0), st.integers(1, 8), st.integers(9, 90))
_suffix_lens = st.one_of(
    st.lists(st.integers(1, 6), max_size=12),
    st.lists(st.integers(1, 90), max_size=5),
    st.builds(lambda length, rows: [length] * rows, st.integers(1, 40), st.integers(1, 8)),
)


@st.composite
def layouts(draw: st.DrawFn, max_groups: int = 4) -> ForwardLayout:
    """Prefixes held, fresh, both or neither; no row, one row, equal rows and unequal rows."""
    groups = draw(
        st.lists(
            st.tuples(_prefix_lens, _prefix_lens, _suffix_lens).filter(
                lambda lens: lens[1] > 0 or len(lens[2]) > 0
            ),
            min_size=1,
            max_size=max_groups,
        )
    )
    return layout(*((held, fresh, *suffix) for held, fresh, suffix in groups))


@st.composite
def whole_prompts(draw: st.DrawFn, max_groups: int = 4) -> ForwardLayout:
    """Prompts without a prefix, whose tokens see all of their own prompt."""
    rows = _suffix_lens.filter(lambda lens: len(lens) > 0)
    groups = draw(st.lists(rows, min_size=1, max_size=max_groups))
    return replace(layout(*((0, 0, *lens) for lens in groups)), causal=False)

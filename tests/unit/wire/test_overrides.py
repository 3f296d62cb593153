from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.scheduling.planner import overrides_of
from sglang_prefill_ext.wire.arrays import (
    DTYPES,
    NO_OVERRIDES,
    EmbeddingKind,
    distinct_overrides,
    int_array,
    overrides_from_bytes,
)
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Labels


@st.composite
def tables(draw: st.DrawFn, width: int = 3) -> np.ndarray:
    """Embeddings, many of them equal."""
    rows = draw(st.lists(st.lists(st.integers(0, 1), min_size=width, max_size=width), max_size=8))
    return np.array(rows, dtype=draw(st.sampled_from(DTYPES))).reshape(-1, width)


@given(tables())
def test_a_round_trip_through_bytes_keeps_every_number(table: np.ndarray) -> None:
    read = overrides_from_bytes(table.tobytes(), table.dtype.name, table.shape[1])
    assert read.shape == (table.shape if len(table) else NO_OVERRIDES.shape)
    assert read.tobytes() == table.tobytes()
    assert not len(table) or (read.dtype == table.dtype and not read.flags.writeable)


@pytest.mark.parametrize(
    ("size", "dtype", "width"),
    [(12, "float16", 4), (8, "float32", 0), (8, "float64", 1), (8, "int32", 1), (8, "", 2)],
)
def test_other_bytes_are_refused(size: int, dtype: str, width: int) -> None:
    with pytest.raises(PackingError, match=f"{size} bytes are no {dtype} embeddings of {width}"):
        overrides_from_bytes(bytes(size), dtype, width)


@given(tables())
def test_equal_embeddings_have_one_id_and_others_have_others(table: np.ndarray) -> None:
    distinct, ids = distinct_overrides(table)
    assert (distinct[~ids] == table).all()
    assert len({row.tobytes() for row in distinct}) == len(distinct)
    numbers = (~ids).tolist()
    assert [number for place, number in enumerate(numbers) if number not in numbers[:place]] == [
        *range(len(distinct))
    ]


@given(st.lists(st.tuples(st.lists(st.integers(-4, 5), max_size=6), st.booleans()), max_size=4))
def test_joined_ids_find_the_embeddings_of_their_own_tables(
    parts: list[tuple[list[int], bool]],
) -> None:
    segments, wanted, start = [], [], 0
    for number, (ids, has_table) in enumerate(parts):
        kept = ids if has_table else [abs(one) for one in ids]
        table = np.arange(8, dtype=np.float32).reshape(4, 2) + 100 * number
        segments.append((int_array(kept), table if has_table else NO_OVERRIDES))
        wanted += [(start + k, table[~one].tolist()) for k, one in enumerate(kept) if one < 0]
        start += len(ids)
    at, found = overrides_of(segments)
    assert list(zip(at.tolist(), found.tolist(), strict=True)) == wanted


def test_tokens_name_rows_of_the_table_only() -> None:
    def rows(token: int) -> PackedRows:
        tokens, one = int_array([3, token]), int_array([1])
        table = np.zeros((2, 4), dtype=np.float16)
        return PackedRows(tokens, 1, one, Labels(one), overrides=table)

    assert rows(-2).overrides.shape == (2, 4)
    with pytest.raises(PackingError, match="embeddings"):
        rows(-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@given(embeds=arrays(np.float32, (3, 2), elements=st.floats(width=32)))
@example(embeds=np.array([[65519.996, 0], [65520, 1], [-65520, 1]], np.float32))
@example(embeds=np.array([[3.3961773e38, 0], [3.3961775e38, 1], [-3.4028235e38, 1]], np.float32))
def test_what_a_dtype_holds_is_finite_after_the_cast(
    dtype: torch.dtype, embeds: np.ndarray
) -> None:
    kind = EmbeddingKind(2, str(dtype).removeprefix("torch."))
    finite = torch.from_numpy(embeds).to(dtype).isfinite().all(dim=1)
    assert kind.holds(embeds).tolist() == finite.tolist()
    with np.errstate(over="ignore"):
        halves = embeds.astype(np.float16)
    assert kind.holds(halves).tolist() == np.isfinite(halves).all(axis=1).tolist()

from __future__ import annotations

from itertools import takewhile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.pack import pack_token_ids, shared_once
from sglang_prefill_ext.frontend.score.score_call import pack_labels
from sglang_prefill_ext.wire.arrays import NO_INTS, FlatRows, int_array
from sglang_prefill_ext.wire.flat import check_ids, flat_rows, int32_array, shared_len
from sglang_prefill_ext.wire.read import Labels

VOCAB = 40
LABELS = Labels(int_array([3, 4]))

# Few different tokens, so that items often share a prefix with each other.
TOKEN_LISTS = st.lists(st.integers(0, 1), max_size=40)
ITEMS = st.lists(TOKEN_LISTS, min_size=1, max_size=5)


def flat(rows: list[list[int]]) -> FlatRows:
    return FlatRows(int_array([x for row in rows for x in row]), int_array(list(map(len, rows))))


@given(TOKEN_LISTS, ITEMS, st.lists(st.integers(0, 1), max_size=40), st.booleans())
def test_arrays_are_packed_like_lists(
    query: list[int], items: list[list[int]], common: list[int], first: bool
) -> None:
    items = [common + item for item in items]
    if not all(query + item for item in items):
        with pytest.raises(RequestError, match="empty"):
            pack_token_ids(int_array(query), flat(items), first, LABELS, VOCAB)
        return
    found = pack_token_ids(int_array(query), flat(items), first, LABELS, VOCAB)
    wanted = pack_token_ids(query, items, first, LABELS, VOCAB)
    assert found.prefix_len == wanted.prefix_len
    assert found.tokens.tolist() == wanted.tokens.tolist()
    assert found.suffix_lens.tolist() == wanted.suffix_lens.tolist()
    assert found.tokens.dtype == found.suffix_lens.dtype == np.int32


@given(st.lists(st.lists(st.integers(0, 2), max_size=40), min_size=2, max_size=5))
def test_what_rows_share_leaves_a_token_in_every_row(rows: list[list[int]]) -> None:
    columns = zip(*rows, strict=False)
    common = len(list(takewhile(lambda column: len(set(column)) == 1, columns)))
    assert shared_len(flat(rows)) == min(common, min(map(len, rows)) - 1)


@given(ITEMS, st.integers(0, 40))
def test_no_more_is_taken_out_of_rows_than_is_wanted(rows: list[list[int]], most: int) -> None:
    rows = [[7, *row] for row in rows]
    tokens, prefix_len, lens = shared_once(NO_INTS, flat(rows), most=most)
    assert prefix_len == (0 if len(rows) == 1 else min(most, shared_len(flat(rows))))
    rest = np.split(tokens[prefix_len:], np.cumsum(lens)[:-1])
    assert [[*tokens[:prefix_len].tolist(), *own.tolist()] for own in rest] == rows


def test_long_common_beginnings_are_found_whole() -> None:
    rows = [[7] * 5000 + [1], [7] * 5000 + [2, 3]]
    assert pack_token_ids(int_array([9]), flat(rows), False, LABELS, VOCAB).prefix_len == 5001


@given(st.lists(st.lists(st.integers(-1, 6), max_size=3), max_size=4), st.integers(1, 4))
def test_labels_are_judged_like_lists(rows: list[list[int]], items: int) -> None:
    found = pack_labels(flat(rows), items, 6)
    wanted = pack_labels(rows[0] if len(rows) == 1 else rows, items, 6)
    assert (found is None) == (wanted is None)
    if found is not None and wanted is not None:
        assert found.ids.tolist() == wanted.ids.tolist()
        assert found.lens.tolist() == wanted.lens.tolist()


@given(st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5), max_size=5))
def test_rows_are_read_from_their_bytes(rows: list[list[int]]) -> None:
    sent = flat(rows)
    found = flat_rows(sent.values.tobytes(), sent.counts.tobytes(), field="f")
    assert [row.tolist() for row in found.rows()] == rows
    assert len(found) == len(rows)


@pytest.mark.parametrize(
    ("values", "counts", "field"),
    [
        (b"\0" * 7, int_array([2]).tobytes(), "f.values"),
        (b"\0" * 8, b"\0" * 3, "f.counts"),
        (b"\0" * 8, int_array([1]).tobytes(), "f.counts"),
        (b"\0" * 8, int_array([3, -1]).tobytes(), "f.counts"),
        (b"\0" * 8, int_array([2**31 - 1, 2**31 - 1, 4]).tobytes(), "f.counts"),
    ],
)
def test_broken_rows_are_refused_by_field(values: bytes, counts: bytes, field: str) -> None:
    with pytest.raises(RequestError, match=field) as caught:
        flat_rows(values, counts, field="f")
    assert caught.value.field == field


def test_bytes_are_not_copied() -> None:
    assert not int32_array(b"\1\0\0\0", field="f").flags.writeable


@pytest.mark.parametrize("token", [-1, VOCAB, -(2**31), 2**31 - 1])
def test_ids_out_of_the_vocabulary_are_refused(token: int) -> None:
    check_ids(int_array([]), VOCAB, field="query")
    check_ids(int_array([0, VOCAB - 1]), VOCAB, field="query")
    with pytest.raises(RequestError, match=f"`query`.* {token}; valid ids are 0 to 39"):
        check_ids(int_array([1, token, 2]), VOCAB, field="query")
    with pytest.raises(RequestError, match="`items`"):
        pack_token_ids(int_array([1]), flat([[1], [token]]), False, LABELS, VOCAB)

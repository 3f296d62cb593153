"""Joined forwards are compared with the pieces that they were made of."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby, pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.planner import ForwardPlan, plan_forward
from sglang_prefill_ext.scheduling.split import Piece, split_request
from sglang_prefill_ext.wire.arrays import int_array
from tests.unit.wire.strategies import PlainRequest, asking, plain_requests


@st.composite
def piece_lists(draw: st.DrawFn) -> list[Piece]:
    """Pieces of a few requests, whose prefixes and adapters are often equal."""
    pieces = []
    for request in draw(st.lists(plain_requests(), min_size=1, max_size=6)):
        prefix = draw(st.sampled_from([[], [1, 2], [1, 2, 3], request.prefix]))
        adapter = draw(st.sampled_from(["", "", "a", "b"]))
        packed = replace(request, prefix=prefix, adapter=adapter).pack()
        rows = asking(packed, normalised=draw(st.booleans()))
        budget = ForwardBudget(draw(st.integers(5, 60)))
        pieces.append(draw(st.sampled_from(split_request(rows, budget))))
    return pieces


def _computed(plan: ForwardPlan) -> list[tuple[int, list[int], list[int], list[int]]]:
    """``(held, fresh prefix, suffix, labels)`` of every value's row, one entry a row and group."""
    tokens, labels = plan.token_ids.tolist(), plan.reads.label_ids.tolist()
    label_lens = iter(plan.reads.lens.tolist())
    rows, at, label_at = [], 0, 0
    for span in plan.layout.groups:
        prefix = tokens[at : at + span.fresh]
        at += span.fresh
        for length in span.suffix_lens.tolist():
            count = next(label_lens)
            row_labels = labels[label_at : label_at + count]
            rows.append((span.held, prefix, tokens[at : at + length], row_labels))
            at, label_at = at + length, label_at + count
    assert at == len(tokens)
    assert label_at == len(labels)
    return rows


@given(piece_lists())
def test_every_piece_finds_its_rows_and_labels_in_its_share(pieces: list[Piece]) -> None:
    plan = plan_forward(pieces)
    asked = [
        (held, prefix, suffix, label)
        for held, prefix, suffix, labels in _computed(plan)
        for label in labels
    ]
    for piece, share in zip(pieces, plan.shares, strict=True):
        own = plan_forward([piece])
        expected = [
            (held, prefix, suffix, label)
            for held, prefix, suffix, labels in _computed(own)
            for label in labels
        ]
        assert asked[share.values] == expected


@given(piece_lists())
def test_shares_cover_the_values_once(pieces: list[Piece]) -> None:
    plan = plan_forward(pieces)
    ends = sorted((share.values.start, share.values.stop) for share in plan.shares)
    assert ends[0][0] == 0
    assert ends[-1][1] == len(plan.reads.label_ids)
    assert all(before[1] == after[0] for before, after in pairwise(ends))


@given(piece_lists())
def test_an_equal_prefix_is_computed_once(pieces: list[Piece]) -> None:
    plan = plan_forward(pieces)
    shared = {piece.prefix_key for piece in pieces if piece.prefix_key is not None}
    unshared = [piece for piece in pieces if piece.prefix_key is None]
    assert len(plan.layout.groups) == len(shared) + len(unshared)
    prefixes = {piece.prefix_key: piece.span.fresh for piece in pieces if piece.prefix_key}
    expected = (
        sum(prefixes.values())
        + sum(piece.span.fresh for piece in unshared)
        + sum(len(piece.suffix_ids) for piece in pieces)
    )
    assert plan.num_tokens == plan.layout.num_tokens == expected
    assert sum(share.num_tokens for share in plan.shares) == expected


@given(piece_lists())
def test_pieces_keep_their_prefixes_in_their_groups(pieces: list[Piece]) -> None:
    plan = plan_forward(pieces)
    for piece, share in zip(pieces, plan.shares, strict=True):
        span = plan.layout.groups[share.group]
        assert (span.held, span.fresh) == (piece.span.held, piece.span.fresh)
    assert plan.num_rows == plan.layout.num_rows == sum(piece.span.num_rows for piece in pieces)


@given(piece_lists())
def test_groups_of_one_adapter_are_neighbours(pieces: list[Piece]) -> None:
    plan = plan_forward(pieces)
    assert len(plan.adapters) == len(plan.layout.groups)
    for piece, share in zip(pieces, plan.shares, strict=True):
        assert plan.adapters[share.group] == piece.adapter
    blocks = [adapter for adapter, _ in groupby(plan.adapters)]
    assert len(blocks) == len({*blocks})


@given(piece_lists())
def test_every_row_is_read_as_its_request_asks(pieces: list[Piece]) -> None:
    plan = plan_forward(pieces)
    kinds = np.repeat(plan.reads.kinds, plan.reads.lens)
    for piece, share in zip(pieces, plan.shares, strict=True):
        assert (
            kinds[share.values].tolist() == np.repeat(piece.reads.kinds, piece.reads.lens).tolist()
        )


def test_tokens_with_embeddings_of_their_own_have_the_id_0() -> None:
    plain = PlainRequest([4], [[5], [6, 7]], [[7]] * 2, shared_labels=True)
    packed = plain.pack()
    tables = np.arange(16, dtype=np.float32).reshape(2, 2, 4)
    pieces = [split_request(packed, ForwardBudget(50))[0]]
    for table in tables:  # one row of a table twice, the other in the prefix
        rows = replace(packed, tokens=int_array([-2, 0, -1, -1]), overrides=table)
        pieces += split_request(rows, ForwardBudget(50))
    plan = plan_forward(pieces)
    assert plan.token_ids.tolist() == [4, 5, 6, 7, *[0] * 8]
    assert plan.override_at.tolist() == [4, 6, 7, 8, 10, 11], "not where the request has a 0"
    assert plan.overrides.tolist() == tables[:, [1, 0, 0]].reshape(6, 4).tolist()
    assert packed.tokens.tolist() == [4, 5, 6, 7], "what other pieces have stays as it is"


def test_requests_with_one_query_become_one_group() -> None:
    first = PlainRequest([1, 2], [[3], [4]], [[7]] * 2, shared_labels=True)
    second = PlainRequest([9], [[3]], [[8]], shared_labels=True)
    third = PlainRequest([1, 2], [[5, 6]], [[7, 8]], shared_labels=True)
    pieces = [split_request(each.pack(), ForwardBudget(50))[0] for each in (first, second, third)]
    plan = plan_forward(pieces)
    assert plan.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 9, 3]
    assert plan.reads.label_ids.tolist() == [7, 7, 7, 8, 8]
    assert [share.group for share in plan.shares] == [0, 1, 0]
    assert [share.values for share in plan.shares] == [slice(0, 2), slice(4, 5), slice(2, 4)]
    assert [share.num_tokens for share in plan.shares] == [4, 2, 2]


def test_rows_of_one_prefix_are_read_as_each_request_asks() -> None:
    ends = PlainRequest([1, 2], [[3], [4, 5]], [[7]] * 2, shared_labels=True).pack()
    more = PlainRequest([1, 2], [[5, 6, 7]], [[8]], shared_labels=True).pack()
    both = replace(more, read_lens=int_array([2]))
    first, second, third = (
        split_request(rows, ForwardBudget(50))[0] for rows in (ends, more, both)
    )
    layout = plan_forward([first, third]).layout
    assert layout.read_positions().tolist() == [2, 4, 6, 7]
    assert not layout.reads_row_ends
    assert plan_forward([first, second]).layout.reads_row_ends

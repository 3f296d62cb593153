from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.split import Piece, cacheable_prefix, split_request, unfit_row
from tests.unit.wire.strategies import PlainRequest, asking, plain_requests

MAX_SUFFIX = 5
REQUESTS = plain_requests(max_prefix=20, max_suffix=MAX_SUFFIX)


@st.composite
def budgets(draw: st.DrawFn) -> ForwardBudget:
    """Budgets that hold any row of `REQUESTS`, some of them limited by memory."""
    per_token, per_row = draw(st.integers(0, 3)), draw(st.integers(0, 6))
    least = max(1, MAX_SUFFIX * per_token + per_row)
    return ForwardBudget(
        draw(st.integers(MAX_SUFFIX, 40)), draw(st.integers(least, 100)), per_token, per_row
    )


BUDGETS = budgets()


def _rows_of(piece: Piece) -> list[list[int]]:
    ends = list(accumulate(piece.span.suffix_lens.tolist(), initial=0))
    tokens = piece.suffix_ids.tolist()
    assert len(tokens) == ends[-1]
    return [tokens[a:b] for a, b in pairwise(ends)]


@given(REQUESTS, BUDGETS, st.integers(0, 50))
def test_every_token_behind_the_cached_ones_is_computed_once_and_in_order(
    request: PlainRequest, budget: ForwardBudget, cached: int
) -> None:
    cached = min(cached, len(request.prefix))
    prefix = request.prefix[:cached]
    rows: list[list[int]] = []
    for piece in split_request(request.pack(), budget, cached):
        assert piece.span.held == len(prefix)
        assert piece.span.fresh == len(piece.prefix_ids)
        prefix += piece.prefix_ids.tolist()
        assert not piece.span.num_rows or prefix == request.prefix, "a row needs its whole prefix"
        rows += _rows_of(piece)
    assert prefix == request.prefix
    assert rows == request.suffixes


@given(REQUESTS, BUDGETS, st.integers(0, 50))
def test_every_piece_fits(request: PlainRequest, budget: ForwardBudget, cached: int) -> None:
    for piece in split_request(request.pack(), budget, min(cached, len(request.prefix))):
        assert piece.num_tokens == piece.span.num_tokens
        assert budget.fits(piece.num_tokens, piece.span.num_rows)


@given(REQUESTS, BUDGETS)
def test_a_request_that_fits_is_not_divided(request: PlainRequest, budget: ForwardBudget) -> None:
    fits = budget.fits(request.num_tokens, len(request.suffixes))
    assert fits == (len(split_request(request.pack(), budget)) == 1)


def _best_division(request: PlainRequest, budget: ForwardBudget, cached: int) -> tuple[int, int]:
    """``(pieces, tokens of the largest)`` of the best division, found by trying all."""
    units = [(1, 0)] * (len(request.prefix) - cached)
    units += [(len(suffix), 1) for suffix in request.suffixes]

    @cache
    def best(start: int) -> tuple[int, int]:
        if start == len(units):
            return 0, 0
        found, tokens, rows = [], 0, 0
        for stop in range(start, len(units)):
            tokens, rows = tokens + units[stop][0], rows + units[stop][1]
            if not budget.fits(tokens, rows):
                break
            pieces, largest = best(stop + 1)
            found.append((pieces + 1, max(tokens, largest)))
        return min(found)

    return best(0)


@given(REQUESTS, BUDGETS, st.integers(0, 50))
def test_pieces_are_few_and_then_equal(
    request: PlainRequest, budget: ForwardBudget, cached: int
) -> None:
    cached = min(cached, len(request.prefix))
    pieces = split_request(request.pack(), budget, cached)
    largest = max(piece.num_tokens for piece in pieces)
    assert (len(pieces), largest) == _best_division(request, budget, cached)


@given(REQUESTS, BUDGETS, st.booleans())
def test_the_pieces_ask_for_what_the_request_asks(
    request: PlainRequest, budget: ForwardBudget, normalised: bool
) -> None:
    labels: list[list[int]] = []
    for piece in split_request(asking(request.pack(), normalised=normalised), budget):
        assert [kind.normalised for kind, _ in piece.reads.by_kind()] in ([], [normalised])
        ends = list(accumulate(piece.reads.lens.tolist(), initial=0))
        flat = piece.reads.label_ids.tolist()
        assert (len(flat), len(piece.reads.lens)) == (ends[-1], piece.span.num_rows)
        labels += [flat[a:b] for a, b in pairwise(ends)]
    assert labels == request.labels


@given(REQUESTS, REQUESTS, BUDGETS, st.sampled_from(["", "other"]))
def test_only_equal_whole_prefixes_of_an_adapter_have_equal_keys(
    first: PlainRequest, second: PlainRequest, budget: ForwardBudget, adapter: str
) -> None:
    same = replace(second, prefix=first.prefix)
    for other in (second, same):
        key = split_request(first.pack(), budget)[0].prefix_key
        other_key = split_request(replace(other, adapter=adapter).pack(), budget)[0].prefix_key
        if key is not None and other_key is not None:
            equal = first.prefix == other.prefix and not adapter
            assert (key == other_key) == equal
    pieces = split_request(first.pack(), budget)
    for piece in pieces:
        assert (piece.prefix_key is not None) == (len(pieces) == 1)


def test_a_prefix_that_is_read_or_has_embeddings_comes_from_no_cache() -> None:
    rows = PlainRequest([1, 2], [[3]], [[1]], shared_labels=True).pack()
    prefix = cacheable_prefix(rows)
    assert prefix is not None
    assert prefix.tolist() == [1, 2]
    assert cacheable_prefix(replace(rows, prefix_reads=1)) is None
    assert cacheable_prefix(replace(rows, overrides=np.ones((1, 4), np.float32))) is None


def test_a_long_prefix_is_computed_in_chunks() -> None:
    request = PlainRequest(list(range(10)), [[50], [51, 52], [53]], [[1]] * 3, shared_labels=True)
    spans = [piece.span for piece in split_request(request.pack(), ForwardBudget(4))]
    assert [(span.held, span.fresh, span.suffix_lens.tolist()) for span in spans] == [
        (0, 4, []),
        (4, 4, []),
        (8, 2, [1]),
        (10, 0, [2, 1]),
    ]


@pytest.mark.parametrize(("tokens", "unfit"), [(5, None), (6, 6)])
def test_a_row_may_take_all_of_the_memory(tokens: int, unfit: int | None) -> None:
    budget = ForwardBudget(40, max_bytes=16, bytes_per_token=2, bytes_per_row=6)
    request = PlainRequest([1, 2], [[3] * tokens, [4]], [[1]] * 2, shared_labels=True)
    assert unfit_row(request.pack(), budget) == unfit


@given(REQUESTS, st.integers(1, MAX_SUFFIX))
def test_a_suffix_over_the_budget_is_refused(request: PlainRequest, max_tokens: int) -> None:
    budget = ForwardBudget(max_tokens)
    longest = max(map(len, request.suffixes))
    if longest <= max_tokens:
        assert split_request(request.pack(), budget)
        return
    with pytest.raises(PackingError, match=f"{longest} tokens .*max_tokens={max_tokens},"):
        split_request(request.pack(), budget)

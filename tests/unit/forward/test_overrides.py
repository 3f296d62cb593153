"""Embeddings of the user's own go through the scheduler and the forward as tokens do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.forward.executor import PackedExecutor
from sglang_prefill_ext.scheduling.budget import ForwardBudget, load_of
from sglang_prefill_ext.scheduling.planner import plan_forward
from sglang_prefill_ext.scheduling.prefixed_forward import PrefixedForward
from sglang_prefill_ext.scheduling.split import split_request
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.parts import distinct_rows
from tests.unit.forward.tiny_model import HIDDEN, TinyModel
from tests.unit.scheduling.caches import MemoryCache
from tests.unit.scheduling.jobs import job_of_rows
from tests.unit.wire.override_requests import REPLACED, embeds, orders, pack_overridden
from tests.unit.wire.strategies import VOCAB, PlainRequest, plain_requests


def _reference() -> TinyModel:
    """A model whose own embeddings are those that tests send in place of tokens."""
    model = TinyModel()
    model.tokens[:REPLACED] = torch.from_numpy(embeds(HIDDEN))
    return model


def _values(model: TinyModel, requests: Sequence[PackedRows], budget: int) -> list[list[float]]:
    """Answers of requests that go through their forwards side by side, on a prefix cache."""
    executor, cache = PackedExecutor(model, readout_bytes=2 * VOCAB * 4), MemoryCache()
    jobs = []
    for rows in requests:
        kept, places = distinct_rows(rows)
        jobs.append(job_of_rows(kept, ForwardBudget(budget), value_places=places))
    while waiting := [job for job in jobs if not job.launched]:
        prefixed = PrefixedForward(waiting, cache)
        completion = executor.launch(prefixed.plan)
        values = completion.wait()
        prefixed.commit()
        for job, share in zip(waiting, prefixed.plan.shares, strict=True):
            job.values.append(values[share.values])
            job.next_piece += 1
            if job.launched and job.held is not None:
                job.held.commit()
    cache.check_idle()
    return [job.answer().tolist() for job in jobs]


@given(
    st.lists(st.tuples(plain_requests(), orders, st.booleans()), min_size=1, max_size=4),
    st.integers(5, 40),
)
def test_values_are_those_of_a_model_that_has_the_embeddings_itself(
    requests: list[tuple[PlainRequest, list[int], bool]], budget: int
) -> None:
    """Some prefixes are equal, and requests number their embeddings differently."""
    first = requests[0][0].prefix
    plain = [replace(each, prefix=first) if same else each for each, _, same in requests]
    packed = [
        pack_overridden(each, order, HIDDEN)
        for each, (_, order, _) in zip(plain, requests, strict=True)
    ]
    wanted = _values(_reference(), [each.pack() for each in plain], budget)
    for found, values in zip(_values(TinyModel(), packed, budget), wanted, strict=True):
        # Equal prefixes share a group there and not here, so sums come in another order.
        assert found == pytest.approx(values, rel=2e-5, abs=1e-5)


@given(plain_requests(), orders)
def test_a_request_with_embeddings_shares_no_group_and_no_prefix(
    request: PlainRequest, order: list[int]
) -> None:
    """This holds even for an equal request."""
    (piece,) = split_request(pack_overridden(request, order), ForwardBudget(100))
    (plain,) = split_request(request.pack(), ForwardBudget(100))
    assert not piece.uses_cache
    assert plain.uses_cache == bool(request.prefix)
    shares = plan_forward([piece, plain, piece, plain]).shares
    assert [share.group for share in shares] == [0, 1, 2, 1]


@given(plain_requests(max_suffix=2), orders)
def test_equal_rows_are_found_by_their_embeddings(request: PlainRequest, order: list[int]) -> None:
    kept, places = distinct_rows(pack_overridden(request, order))
    plain, plain_places = distinct_rows(request.pack())
    assert kept.suffix_lens.tolist() == plain.suffix_lens.tolist()
    assert (places is None) == (plain_places is None)
    assert places is None or plain_places is None or (places == plain_places).all()
    assert kept.overrides.shape == (REPLACED, 2)


@given(plain_requests(), orders)
def test_embeddings_count_to_what_waits(request: PlainRequest, order: list[int]) -> None:
    rows = pack_overridden(request, order, HIDDEN)
    plain = load_of(request.pack())
    assert load_of(rows) == replace(plain, bytes=plain.bytes + REPLACED * HIDDEN * 4)

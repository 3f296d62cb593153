"""Which K/V reach the attention of a layer, and which are kept and stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sglang_prefill_ext.attention.inputs import HeldKV, Latents, LayerInputs
from sglang_prefill_ext.forward.layers import LayerAttention
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.prefixed_forward import PrefixedForward
from tests.unit.scheduling.caches import MemoryCache, MemoryPool
from tests.unit.scheduling.jobs import job_of, job_of_rows, request

LAST_LAYER = 1


class NotedAttention:
    """Returns its queries; notes what was called and with which held K/V."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[float]]] = []
        self._page_table: Tensor | None = None

    def host_arrays(self) -> Sequence[Any]:
        return ()

    def bind(self, arrays: Sequence[Tensor], page_table: Tensor | None = None) -> None:
        self._page_table = page_table

    def forward(self, inputs: LayerInputs, cached: HeldKV | None) -> Tensor:
        return self._note("forward", inputs.q, cached)

    def read(self, inputs: LayerInputs, cached: HeldKV | None) -> Tensor:
        return self._note("read", inputs.q, cached)

    def _note(self, name: str, q: Tensor, cached: HeldKV | None) -> Tensor:
        keys = [] if cached is None else cached[0][self._page_table].flatten().tolist()
        self.calls.append((name, keys))
        return q


def values_of(tokens: np.ndarray, layer: int) -> Tensor:
    """Keys `[T, 1, 1]` that identify token and layer."""
    return torch.from_numpy(tokens + 100.0 * layer)[:, None, None]


def attend(prefixed: PrefixedForward, pool: MemoryPool) -> NotedAttention:
    noted, tokens = NotedAttention(), prefixed.plan.token_ids
    attention = LayerAttention(prefixed.plan, noted, LAST_LAYER, pool)
    noted.bind((), attention.page_table())
    for layer in range(LAST_LAYER + 1):
        k = values_of(tokens, layer)
        latents = Latents(k[:, 0] / 2, k / 4, expanded)
        assert attention(layer, LayerInputs(k, k, -k, 1.0, latents=latents)) is k
    return noted


def expanded(compressed: Tensor, rotated: Tensor) -> HeldKV:
    """`Latents.expand`: keys and values as in `attend`."""
    keys = compressed[:, None] + 2 * rotated
    return keys, -keys


def test_cached_tokens_are_read_where_they_lie_and_fresh_ones_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache, pool, cat = MemoryCache(), MemoryPool(), torch.cat

    def cat_of_slots(tensors: list[Tensor]) -> Tensor:
        assert not any(each.is_floating_point() for each in tensors), "K/V are not copied"
        return cat(tensors)

    for prefixes in ([[1, 2], [8]], [[5], [1, 2, 3, 4], [8]]):
        prefixed = PrefixedForward([job_of(request(prefix)) for prefix in prefixes], cache)
        with monkeypatch.context() as patch:
            patch.setattr(torch, "cat", cat_of_slots)
            noted = attend(prefixed, pool)
        prefixed.commit()
    assert noted.calls == [("forward", [1, 2, 8]), ("read", [101, 102, 108])]
    for layer in range(LAST_LAYER + 1):
        k, v = pool.buffers(layer)
        stored = k[cache.committed[1, 2, 3, 4]]
        assert stored.flatten().tolist() == [layer * 100 + token for token in (1, 2, 3, 4)]
        assert torch.equal(v[cache.committed[1, 2, 3, 4]], -stored)
    assert pool.buffers(0)[0][cache.committed[(5,)]].flatten().tolist() == [5]


def test_a_pool_of_latents_keeps_them_and_keys_are_made_of_them_again() -> None:
    cache, pool = MemoryCache(), MemoryPool(keeps_latents=True)
    for prefixes in ([[1, 2], [8]], [[5], [1, 2, 3, 4], [8]]):
        prefixed = PrefixedForward([job_of(request(prefix)) for prefix in prefixes], cache)
        noted = attend(prefixed, pool)
        prefixed.commit()
    assert noted.calls == [("forward", [1, 2, 8]), ("read", [101, 102, 108])]
    rows, values = pool.buffers(1)
    slots = cache.committed[1, 2, 3, 4]
    assert rows[slots].flatten(1).tolist() == [[x / 2, x / 4] for x in (101, 102, 103, 104)]
    assert torch.equal(values[slots], rows[slots][..., :1])


@pytest.mark.parametrize("keeps_latents", [False, True])
def test_each_forward_of_a_divided_job_reads_what_those_before_have_left(
    keeps_latents: bool,
) -> None:
    cache, pool = MemoryCache(), MemoryPool(keeps_latents=keeps_latents)
    attend(first := PrefixedForward([job_of(request([1, 2]))], cache), pool)
    first.commit()
    rows = request([1, 2, 3, 4, 5, 6], *[[9, 9]] * 3).pack()
    divided = job_of_rows(rows, ForwardBudget(3), cached=2)
    seen = []
    while not divided.launched:
        seen += [calls[1] for calls in attend(PrefixedForward([divided], cache), pool).calls]
        divided.next_piece += 1
    whole = [1, 2, 3, 4, 5, 6]
    fresh = [piece.prefix_ids.tolist() for piece in divided.pieces]
    held = [whole[: piece.span.held] for piece in divided.pieces]
    assert len(fresh) > 3
    assert [token for each in fresh for token in each] == whole[2:]
    assert seen == [[token + add for token in each] for each in held for add in (0, 100)]

"""Which K/V reach the attention of a layer, and which are kept and stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sglang_prefill_ext.attention.inputs import LayerInputs
from sglang_prefill_ext.attention.prefix import HeldKV
from sglang_prefill_ext.oneshot.boarding import Boarding
from sglang_prefill_ext.oneshot.layers import LayerAttention
from tests.unit.oneshot.caches import MemoryCache, MemoryPool
from tests.unit.oneshot.jobs import job_of, request

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
    """Keys `[T, 1, 1]` by which token and layer are recognised."""
    return torch.from_numpy(tokens + 100.0 * layer)[:, None, None]


def attend(boarding: Boarding, pool: MemoryPool) -> tuple[LayerAttention, NotedAttention]:
    noted, tokens = NotedAttention(), boarding.plan.token_ids
    held, stores = boarding.held, boarding.stores
    attention = LayerAttention(boarding.plan, noted, held, stores, LAST_LAYER, pool)
    noted.bind((), attention.page_table(torch.device("cpu")))
    for layer in range(LAST_LAYER + 1):
        k = values_of(tokens, layer)
        assert attention(layer, LayerInputs(k, k, -k, 1.0)) is k
    return attention, noted


def test_cached_tokens_are_read_where_they_lie_and_fresh_ones_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache, pool = MemoryCache(), MemoryPool()
    monkeypatch.setattr(torch, "cat", None)
    for prefixes in ([[1, 2], [8]], [[5], [1, 2, 3, 4], [8]]):
        boarding = Boarding([job_of(request(prefix)) for prefix in prefixes], cache)
        attention, noted = attend(boarding, pool)
        assert attention.kept == [None] * len(prefixes)
        boarding.commit()
    assert noted.calls == [("forward", [1, 2, 8]), ("read", [101, 102, 108])]
    for layer in range(LAST_LAYER + 1):
        k, v = pool.buffers(layer)
        stored = k[cache.committed[1, 2, 3, 4]]
        assert stored.flatten().tolist() == [layer * 100 + token for token in (1, 2, 3, 4)]
        assert torch.equal(v[cache.committed[1, 2, 3, 4]], -stored)
    assert pool.buffers(0)[0][cache.committed[(5,)]].flatten().tolist() == [5]


def test_a_held_prefix_is_what_was_cached_and_what_is_fresh() -> None:
    cache, pool = MemoryCache(), MemoryPool()
    attend(first := Boarding([job_of(request([1, 2]))], cache), pool)
    first.commit()
    divided = job_of(request([1, 2, 3], *[[9, 9]] * 3), budget=5)
    attention, noted = attend(Boarding([divided], cache), pool)
    (kept,) = attention.kept
    assert noted.calls[0] == ("forward", [1, 2])
    assert kept is not None
    assert kept.load(1)[0].flatten().tolist() == [101, 102, 103]

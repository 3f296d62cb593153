"""Which K/V reach the attention of a layer, and which are kept and stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sglang_prefill_ext.attention.inputs import LayerInputs
from sglang_prefill_ext.attention.prefix import Held
from sglang_prefill_ext.oneshot.boarding import Boarding
from sglang_prefill_ext.oneshot.layers import LayerAttention
from tests.unit.oneshot.caches import MemoryCache
from tests.unit.oneshot.jobs import job_of, request

LAST_LAYER = 1


class NotedAttention:
    """Returns its queries; notes what was called and with which held K/V."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[list[float] | None]]] = []

    def host_arrays(self) -> Sequence[Any]:
        return ()

    def bind(self, arrays: Sequence[Tensor]) -> None: ...

    def forward(self, inputs: LayerInputs, held: Held) -> Tensor:
        return self._note("forward", inputs.q, held)

    def read(self, inputs: LayerInputs, held: Held) -> Tensor:
        return self._note("read", inputs.q, held)

    def _note(self, name: str, q: Tensor, held: Held) -> Tensor:
        self.calls.append((name, [pair and pair[0].flatten().tolist() for pair in held]))
        return q


def values_of(tokens: np.ndarray, layer: int) -> Tensor:
    """Keys `[T, 1, 1]` by which token and layer are recognised."""
    return torch.from_numpy(tokens + 100.0 * layer)[:, None, None]


def attend(boarding: Boarding) -> tuple[LayerAttention, NotedAttention]:
    noted, tokens = NotedAttention(), boarding.plan.token_ids
    attention = LayerAttention(boarding.plan, noted, boarding.held, boarding.stores, LAST_LAYER)
    for layer in range(LAST_LAYER + 1):
        k = values_of(tokens, layer)
        assert attention(layer, LayerInputs(k, k, -k, 1.0)) is k
    return attention, noted


def test_cached_tokens_are_loaded_and_fresh_ones_stored() -> None:
    cache = MemoryCache()
    for prefixes in ([[1, 2]], [[5], [1, 2, 3, 4]]):
        boarding = Boarding([job_of(request(prefix)) for prefix in prefixes], cache)
        attention, noted = attend(boarding)
        assert attention.kept == [None] * len(prefixes)
        boarding.commit()
    assert noted.calls == [("forward", [None, [1, 2]]), ("read", [None, [101, 102]])]
    for layer, (k, v) in cache.committed[1, 2, 3, 4].items():
        assert k.flatten().tolist() == [layer * 100 + token for token in (1, 2, 3, 4)]
        assert torch.equal(v, -k)
    assert cache.committed[(5,)][0][0].flatten().tolist() == [5]


def test_a_held_prefix_is_what_was_cached_and_what_is_fresh() -> None:
    cache = MemoryCache()
    attend(first := Boarding([job_of(request([1, 2]))], cache))
    first.commit()
    divided = job_of(request([1, 2, 3], *[[9, 9]] * 3), budget=5)
    attention, noted = attend(Boarding([divided], cache))
    (kept,) = attention.kept
    assert noted.calls[0] == ("forward", [[1, 2]])
    assert kept is not None
    assert kept.load(1)[0].flatten().tolist() == [101, 102, 103]

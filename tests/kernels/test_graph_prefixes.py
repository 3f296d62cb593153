"""Replayed graphs read cached prefixes in place in the pool, and store others there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.forward.executor import PackedExecutor
from sglang_prefill_ext.forward.graphs import replay
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.planner import ForwardPlan, plan_forward
from sglang_prefill_ext.scheduling.split import Piece, split_request
from tests.kernels.test_graphs import DeviceModel, each_way, request
from tests.unit.forward.tiny_model import LAYERS

LARGEST = 48
BUDGET = ForwardBudget(1000)
FIRST, SECOND, PLAIN = request(1, 11, 2, 3), request(2, 7, 1, 1, 2), request(3, 0, 4, 2)
FIRST_SLOTS, SECOND_SLOTS = [9, 4, 30, 31, 2, 17, 8, 25, 3, 40, 11], [7, 50, 51, 6, 1, 33, 20]


def piece_of(number: int, *, cached: int = 0) -> Piece:
    (piece,) = split_request((FIRST, SECOND, PLAIN)[number].pack(), BUDGET)
    return piece.behind(cached) if cached else piece


def slots(model: DeviceModel, numbers: list[int]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device=model.device)


class Served:
    """A model with graphs that read and write its pool, and one without any, to compare with."""

    def __init__(self, device: torch.device, way: AttentionWay) -> None:
        self.model = DeviceModel(device)
        kind = {"readout_bytes": 1 << 20, "attention": way}
        self.eager = PackedExecutor(DeviceModel(device), **kind)
        self.executor = PackedExecutor(self.model, **kind, caches_prefixes=True)
        self.executor.capture_graphs(LARGEST)
        assert self.executor.graph_use.obstacle == ""

    def launch(
        self, forward: ForwardPlan, held: list[list[int] | None], stores: list[list[int] | None]
    ) -> np.ndarray:
        def named(each: list[int] | None) -> torch.Tensor | None:
            return None if each is None else slots(self.model, each)

        forward.held[:], forward.stores[:] = map(named, held), map(named, stores)
        return self.executor.launch(forward).wait()

    def wanted(self, *numbers: int) -> np.ndarray:
        """The answer of an eager forward that computes all tokens."""
        forward = plan_forward([piece_of(number) for number in numbers])
        return self.eager.launch(forward).wait()

    def pool_at(self, numbers: list[int]) -> list[torch.Tensor]:
        buffers = [self.model.pool.buffers(layer) for layer in range(LAYERS)]
        return [each[slots(self.model, numbers)].clone() for pair in buffers for each in pair]

    @property
    def forwards(self) -> dict[str, int]:
        return dict(self.executor.graph_use.forwards)


@pytest.fixture
def served(device: torch.device) -> Served:
    return Served(device, AttentionWay.FUSED)


@each_way
def test_what_a_replay_stores_the_next_one_reads(way: AttentionWay, device: torch.device) -> None:
    served = Served(device, way)
    stored = served.launch(plan_forward([piece_of(0)]), [None], [FIRST_SLOTS])
    np.testing.assert_allclose(stored, served.wanted(0), rtol=0, atol=1e-5)
    for cached in (11, 4):
        behind = plan_forward([piece_of(0, cached=cached)])
        found = served.launch(behind, [FIRST_SLOTS[:cached]], [None])
        np.testing.assert_allclose(found, served.wanted(0), rtol=0, atol=1e-5)
    assert served.forwards == {"graph": 3}


def test_groups_hold_store_and_do_neither_in_one_replay(served: Served) -> None:
    served.launch(plan_forward([piece_of(0)]), [None], [FIRST_SLOTS])
    mixed = plan_forward([piece_of(2), piece_of(1), piece_of(0, cached=11)])
    found = served.launch(mixed, [None, None, FIRST_SLOTS], [None, SECOND_SLOTS, None])
    np.testing.assert_allclose(found, served.wanted(2, 1, 0), rtol=0, atol=1e-5)
    both = plan_forward([piece_of(1, cached=7), piece_of(0, cached=11)])
    found = served.launch(both, [SECOND_SLOTS, FIRST_SLOTS], [None, None])
    np.testing.assert_allclose(found, served.wanted(1, 0), rtol=0, atol=1e-5)
    assert served.forwards == {"graph": 3}


def test_a_part_of_a_prefix_is_stored_behind_what_is_held(served: Served) -> None:
    served.launch(plan_forward([piece_of(0)]), [None], [FIRST_SLOTS[:4]])
    behind = plan_forward([piece_of(0, cached=4)])
    served.launch(behind, [FIRST_SLOTS[:4]], [FIRST_SLOTS[4:9]])
    found = served.launch(plan_forward([piece_of(0, cached=9)]), [FIRST_SLOTS[:9]], [None])
    np.testing.assert_allclose(found, served.wanted(0), rtol=0, atol=1e-5)


def test_a_later_replay_writes_to_no_slot_of_an_earlier_one(served: Served) -> None:
    served.launch(plan_forward([piece_of(0)]), [None], [FIRST_SLOTS])
    before = served.pool_at(FIRST_SLOTS)
    served.launch(plan_forward([piece_of(2)]), [None], [None])
    served.launch(plan_forward([piece_of(1)]), [None], [SECOND_SLOTS])
    served.launch(plan_forward([piece_of(2)]), [None], [None])
    for kept, now in zip(before, served.pool_at(FIRST_SLOTS), strict=True):
        assert torch.equal(kept, now)
    untouched = sorted(set(range(1, 60)) - {*FIRST_SLOTS, *SECOND_SLOTS})
    assert all(each.isnan().all() for each in served.pool_at(untouched))


def test_longer_prefixes_than_the_page_table_holds_run_eagerly(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.launch(plan_forward([piece_of(0)]), [None], [FIRST_SLOTS])
    monkeypatch.setattr(replay, "HELD_TOKENS", 10)
    behind = plan_forward([piece_of(0, cached=11)])
    found = served.launch(behind, [FIRST_SLOTS], [None])
    np.testing.assert_allclose(found, served.wanted(0), rtol=0, atol=1e-5)
    assert served.forwards == {"graph": 1, "held_prefix": 1}


def test_without_a_cache_graphs_neither_read_nor_write_the_pool(device: torch.device) -> None:
    model = DeviceModel(device)
    executor = PackedExecutor(model, readout_bytes=1 << 20, attention=AttentionWay.FUSED)
    executor.capture_graphs(16)
    executor.launch(plan_forward([piece_of(2)])).wait()
    with pytest.raises(KeyError):
        model.pool.buffers(0)
    storing, behind = plan_forward([piece_of(0)]), plan_forward([piece_of(0, cached=11)])
    storing.stores[0] = behind.held[0] = slots(model, FIRST_SLOTS)
    for forward in (storing, behind):
        executor.launch(forward).wait()
    assert executor.graph_use.forwards == {"graph": 1, "kept_prefix": 1, "held_prefix": 1}

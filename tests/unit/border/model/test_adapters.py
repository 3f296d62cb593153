"""Packed forwards name SGLang's adapters, and the tokens of each, as SGLang's batches do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sglang_prefill_ext.border.model.adapters import Adapters
from sglang_prefill_ext.errors import PackedForwardError
from sglang_prefill_ext.forward.model import Adapted

PARTS = [Adapted("", 5, 2), Adapted("a", 7, 0), Adapted("b", 3, 1)]


class Manager:
    """SGLang's manager with room for two of its adapters, as far as it is asked."""

    device = torch.device("cpu")
    loras = dict.fromkeys("abc")

    def __init__(self) -> None:
        self.fetched: list[set[str | None]] = []
        self.batches: list[Any] = []

    def validate_lora_batch(self, lora_ids: set[str | None]) -> bool:
        return len(lora_ids) <= 2

    def fetch_new_loras(self, new_loras: set[str | None]) -> None:
        self.fetched.append(new_loras)

    def prepare_lora_batch(self, batch: Any) -> None:
        self.batches.append(batch)

    def reset_lora_batch(self) -> None:
        self.batches.append(None)


@pytest.mark.parametrize(
    ("names", "fits"),
    [(["a"], True), (["", "a"], True), (["a", "b"], True), (["", "a", "b"], False)],
)
def test_a_forward_has_as_many_adapters_as_the_pool_has_room_for(
    names: list[str], fits: bool
) -> None:
    assert Adapters(Manager()).fit(names) is fits


def test_an_adapter_that_is_not_there_shares_no_forward() -> None:
    for manager in (Manager(), None):
        adapters = Adapters(manager)
        assert adapters.fit(["gone"])
        assert not adapters.fit(["", "gone"])


@pytest.mark.parametrize("manager", [Manager(), None], ids=["lora", "no_lora"])
def test_an_adapter_that_is_not_there_is_named(manager: Any) -> None:
    with pytest.raises(PackedForwardError, match=r"adapter: 'gone' is not loaded; send its name"):
        Adapters(manager).load([Adapted("", 3, 1), Adapted("gone", 3, 1)])
    assert not getattr(manager, "fetched", [])


def test_the_model_itself_takes_room_beside_adapters() -> None:
    manager = Manager()
    Adapters(manager).load(PARTS)
    assert manager.fetched == [{None, "a", "b"}]


@pytest.mark.parametrize(
    ("shortened", "names", "lens"),
    [(False, [None, "a", "b"], [5, 7, 3]), (True, [None, "b"], [2, 1])],
)
def test_every_part_is_a_sequence(
    shortened: bool, names: list[str | None], lens: list[int]
) -> None:
    manager = Manager()
    Adapters(manager).apply_to(PARTS, shortened=shortened)
    (batch,) = manager.batches
    assert (batch.lora_ids, batch.batch_size) == (names, len(names))
    assert batch.extend_seq_lens.tolist() == batch.extend_seq_lens_cpu == lens
    assert batch.extend_num_tokens == batch.seq_lens_sum == sum(lens)


def test_a_forward_without_adapters_lets_go_of_those_before() -> None:
    manager = Manager()
    adapters = Adapters(manager)
    adapters.load([])
    adapters.apply_to([], shortened=False)
    assert (manager.fetched, manager.batches) == ([], [None])
    Adapters(None).apply_to([], shortened=False)

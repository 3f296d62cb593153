"""What is said to SGLang's adapters of a packed forward."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from sglang_prefill_ext.errors import PackedForwardError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sglang_prefill_ext.border.model.adapters import Adapters


class Manager:
    """Stands in for SGLang's `LoRAManager`; notes what it is told."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.loras = {"a": object()}
        self.fetched: list[set[str | None]] = []
        self.batches: list[Any] = []

    def fetch_new_loras(self, adapters: set[str | None]) -> None:
        self.fetched.append(adapters)

    def prepare_lora_batch(self, batch: Any) -> None:
        self.batches.append(batch)

    def reset_lora_batch(self) -> None:
        self.batches.append(None)


def test_only_the_adapter_that_is_asked_for_is_brought_into_the_pool() -> None:
    manager = Manager()
    for adapter in ("a", ""):
        Adapters(manager).load(adapter)
    assert manager.fetched == [{"a"}]


def test_all_tokens_are_one_sequence_with_one_adapter() -> None:
    manager = Manager()
    Adapters(manager).apply_to(7, "a")
    (batch,) = manager.batches
    assert (batch.batch_size, batch.lora_ids) == (1, ["a"])
    assert batch.extend_seq_lens.tolist() == batch.extend_seq_lens_cpu == [7]
    assert batch.extend_num_tokens == 7
    assert batch.forward_mode.is_extend()


def test_without_an_adapter_the_layers_run_as_they_are() -> None:
    manager = Manager()
    Adapters(manager).apply_to(7, "")
    assert manager.batches == [None]


@pytest.mark.parametrize("manager", [Manager(), None], ids=["lora", "no_lora"])
def test_an_adapter_that_is_not_there_is_named(manager: Manager | None) -> None:
    with pytest.raises(PackedForwardError, match=r"adapter: 'b' is not loaded; send its name"):
        Adapters(manager).load("b")

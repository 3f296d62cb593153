"""What is said to SGLang's adapters of a packed forward."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from sglang_prefill_ext.errors import PackedForwardError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sglang_prefill_ext.compat.adapters import Adapters


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


def test_one_adapter_at_a_time_is_brought_into_the_pool() -> None:
    manager = Manager()
    for adapter in ("a", ""):
        Adapters(manager).load(adapter)
    assert manager.fetched == [{"a"}, {None}]


@pytest.mark.parametrize(("adapter", "named"), [("a", "a"), ("", None)])
def test_all_tokens_are_one_sequence_with_one_adapter(adapter: str, named: str | None) -> None:
    manager = Manager()
    Adapters(manager).apply_to(7, adapter)
    (batch,) = manager.batches
    assert (batch.batch_size, batch.lora_ids) == (1, [named])
    assert batch.extend_seq_lens.tolist() == batch.extend_seq_lens_cpu == [7]
    assert batch.extend_num_tokens == 7
    assert batch.forward_mode.is_extend()


def test_an_adapter_that_has_gone_is_named() -> None:
    manager = Manager()
    with pytest.raises(PackedForwardError, match=r"adapter: 'b' is not loaded; send its name"):
        Adapters(manager).load("b")
    assert manager.fetched == []


def test_a_server_without_adapters_has_nothing_to_be_told() -> None:
    adapters = Adapters(None)
    adapters.load("")
    adapters.apply_to(7, "")
    with pytest.raises(PackedForwardError, match="'a' is asked of a server without LoRA"):
        adapters.load("a")

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sglang_prefill_ext.forward.expert_counts import LAUNCHES_A_LAYER, ExpertCounts

CPU = torch.device("cpu")


class Operations(TorchDispatchMode):
    """Records every operation that reaches a device, except for views."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if not func.is_view:
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **kwargs or {})


def test_rows_are_counted_by_layer_and_expert() -> None:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 7, (3, 50, 4), generator=generator, dtype=torch.int32)
    counts = ExpertCounts(3, 7, CPU)
    for tokens in (50, 50, 30):  # every forward begins anew
        counts.begin()
        for layer in range(3):
            counts.count(layer, ids[layer, :tokens])
        counts.send()
        found = counts.arrived()
        assert found is not None
        routed = ids[:, :tokens].flatten(1).numpy()
        assert found.tolist() == [np.bincount(layer, minlength=7).tolist() for layer in routed]


def test_experts_of_other_devices_do_not_count() -> None:
    counts = ExpertCounts(1, 4, CPU)
    counts.count(0, torch.tensor([[-1, 0], [3, -1], [3, -1]]))
    counts.send()
    assert counts.arrived() is not None
    assert counts.arrived().tolist() == [[1, 0, 0, 2]]  # type: ignore[union-attr]


def test_what_has_arrived_is_not_changed_by_the_next_forward() -> None:
    counts = ExpertCounts(1, 2, CPU)
    counts.count(0, torch.tensor([[1]]))
    counts.send()
    first = counts.arrived()
    counts.begin()
    counts.send()
    assert first is not None
    assert first.tolist() == [[0, 1]]


def test_nothing_is_read_on_the_host_and_few_kernels_are_launched() -> None:
    # A meta tensor has no values: an operation that needed one on the host would raise.
    counts = ExpertCounts(2, 128, torch.device("meta"))
    ids = torch.empty((512, 8), dtype=torch.int32, device="meta")
    counts.begin()
    counts.count(0, ids)
    with Operations() as operations:
        counts.count(1, ids)
    assert operations.names == ["add", "clamp_", "index_add_"]
    assert len(operations.names) == LAUNCHES_A_LAYER
    with Operations() as operations:
        counts.begin()
    assert operations.names == ["zero_"]

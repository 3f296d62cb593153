"""Whole forwards on a GPU that is only pretended: nothing waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.forward.executor import PackedExecutor
from sglang_prefill_ext.forward.logits import ProductHead
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.planner import plan_forward
from sglang_prefill_ext.scheduling.split import split_request
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.parts import whole_rows
from sglang_prefill_ext.wire.read import Labels, Vectors
from tests.gpu.device import GPU, PretendedGpu, pretend_gpu
from tests.unit.forward.kernels import KERNELS
from tests.unit.forward.tiny_model import HIDDEN, TinyModel

# A kernel's arguments are looked at for where they begin; here all do at 0.
pytestmark = pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")

TORCH = AttentionWay.TORCH
"""Plans its calls on the host: it has no graphs, and waits for its plans to be uploaded."""
WAYS = [AttentionWay.FUSED, AttentionWay.MERGE, TORCH]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedGpu]:
    for kernel in KERNELS:
        monkeypatch.setattr(kernel, "run", lambda *_args, **_kwargs: None)
    with pretend_gpu(monkeypatch.setattr) as mode, torch.inference_mode():
        yield mode


class HeadModel(TinyModel):
    """A tiny model on a device, with an output head of any kind."""

    def __init__(self, device: torch.device, **head: Any) -> None:
        super().__init__()
        self.move(device)
        self.kind = head

    def product_head(self) -> ProductHead:
        return ProductHead(self.head.T.contiguous(), **self.kind)


class VectorModel(TinyModel):
    """Its vectors are the hidden states."""

    vector_width = HIDDEN
    unit_length = True

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.move(device)


class EncoderModel(VectorModel):
    causal = False
    last_layer = None


def of_two_ranks(values: Tensor) -> Tensor:
    return torch.stack((values, values))


def launch(executor: PackedExecutor, read: Labels | Vectors, *, cached: int = 0) -> None:
    """A forward of two groups; the first has slots for all of its prefix, if a model shares it."""
    pieces = []
    for prefix, rows in ((9, 5), (0, 3)):
        tokens = np.zeros(prefix + 2 * rows, np.int32)
        packed = PackedRows(tokens, prefix, int_array([2] * rows), read)
        packed = packed if executor.causal else whole_rows(packed)
        pieces += split_request(packed, ForwardBudget(1000))
    plan = plan_forward([pieces[0].behind(cached) if cached else pieces[0], pieces[1]])
    slots = torch.zeros(9, dtype=torch.int64, device=GPU)
    plan.held[0] = slots[:cached] if cached else None
    plan.stores[0] = slots[cached:] if cached < 9 and executor.model.causal else None
    completion: Any = executor.launch(plan)
    assert completion._device_values.device == GPU
    assert completion._device_values.dtype == torch.float32
    assert completion.wait().shape == (plan.reads.num_values,)


LABELS = [
    Labels(int_array([1, 2])),
    Labels(int_array([3, 1, 2]), normalised=False),
    Labels(int_array([1]), num_best=2),
    Labels(num_best=1),
]
MODELS: list[Callable[[torch.device], TinyModel]] = [
    HeadModel,
    lambda device: HeadModel(device, soft_cap=30.0, scale=0.5),
    lambda device: HeadModel(device, first=2, gather=of_two_ranks),
]


@pytest.mark.parametrize("graph_tokens", [0, 64])
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("make", MODELS, ids=["plain", "capped", "shard"])
def test_labels_are_read_without_waiting(
    gpu: PretendedGpu,
    make: Callable[[torch.device], TinyModel],
    way: AttentionWay,
    graph_tokens: int,
) -> None:
    executor = PackedExecutor(make(GPU), readout_bytes=1 << 10, attention=way, caches_prefixes=True)
    if graph_tokens:
        executor.capture_graphs(graph_tokens)
    gpu.waits.clear()
    for cached in (0, 4, 9):
        for read in LABELS:
            launch(executor, read, cached=cached)
    replays = graph_tokens and way is not TORCH
    assert executor.graph_use.forwards["graph"] == (12 if replays else 0)
    assert bool(gpu.waits) == (way is TORCH)


@pytest.mark.parametrize("graph_tokens", [0, 64])
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("make", [VectorModel, EncoderModel])
def test_vectors_are_read_without_waiting(
    gpu: PretendedGpu, make: type[VectorModel], way: AttentionWay, graph_tokens: int
) -> None:
    model = make(GPU)
    executor = PackedExecutor(
        model, readout_bytes=1 << 10, attention=way, caches_prefixes=model.causal
    )
    if graph_tokens:
        executor.capture_graphs(graph_tokens)
    gpu.waits.clear()
    for width in (HIDDEN, HIDDEN // 2):
        launch(executor, Vectors(width))
    replays = graph_tokens and way is not TORCH
    assert executor.graph_use.forwards["graph"] == (2 if replays else 0)
    assert bool(gpu.waits) == (way is TORCH)


def test_what_waits_is_seen(gpu: PretendedGpu) -> None:
    numbers = torch.zeros(4, device=GPU)
    host = torch.zeros(2, dtype=torch.int64)
    waiting = (
        lambda: numbers[host],
        lambda: numbers.sum().item(),
        lambda: torch.equal(numbers, numbers),
        lambda: torch.tensor([1], device=GPU),
        lambda: numbers.cpu(),
        lambda: numbers.copy_(torch.zeros(4)),
        torch.cuda.synchronize,
    )
    for number, wait in enumerate(waiting, start=1):
        wait()
        assert gpu.waits.total() == number, wait
    with pytest.raises(RuntimeError):
        numbers.nonzero()
    for mixed in (lambda: numbers + torch.zeros(4), lambda: numbers.index_select(0, host)):
        with pytest.raises(RuntimeError, match="device"):
            mixed()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        for wait in waiting:
            with pytest.raises(RuntimeError, match="captured"):
                wait()
        with pytest.raises(RuntimeError, match="captured"):
            numbers.copy_(torch.zeros(4), non_blocking=True)

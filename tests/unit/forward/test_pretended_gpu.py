"""Whole forwards on a GPU that is only pretended.

Torch knows the device, shape and dtype of every tensor and no number. So what would wait for a GPU
fails, as does whatever mixes its tensors with those of the host. Kernels are bound, not launched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.forward import executor as executor_module
from sglang_prefill_ext.forward import upload as upload_module
from sglang_prefill_ext.forward.executor import PackedExecutor
from sglang_prefill_ext.forward.graphs import replay
from sglang_prefill_ext.forward.graphs.capture import call_again
from sglang_prefill_ext.forward.readers.logit_chunks import ProductHead
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.planner import plan_forward
from sglang_prefill_ext.scheduling.split import split_request
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.parts import whole_rows
from sglang_prefill_ext.wire.read import Labels, Vectors
from tests.unit.forward.kernels import KERNELS
from tests.unit.forward.tiny_model import HIDDEN, TinyModel

# A kernel's arguments are looked at for where they begin; here all do at 0.
pytestmark = pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")

GPU = torch.device("cuda", 0)
WAYS = [AttentionWay.AUTO, AttentionWay.FUSED, AttentionWay.MERGE, AttentionWay.TORCH]


class OnOneDevice(TorchDispatchMode):
    """Refuses index tensors of the host, for whose copy to the GPU torch would wait."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        devices = {each.device.type for each in tensors if each.dim()}
        is_copy = function is torch.ops.aten.copy_.default
        assert is_copy or len(devices) <= 1, f"{function} of tensors on {devices}"
        return function(*args, **(kwargs or {}))


class Sent:
    """A `ForwardCompletion` whose values never arrive."""

    def __init__(self, values: Tensor) -> None:
        assert values.device == GPU
        assert values.dtype == torch.float32
        self.shape = values.shape


def unfilled(arrays: Sequence[np.ndarray], *, pinned: bool) -> Tensor:
    """An unfilled buffer for arrays of the dtypes that an upload supports."""
    assert all(array.dtype.name in upload_module._TORCH_DTYPES for array in arrays)
    return torch.empty(upload_module._starts(arrays)[1], dtype=torch.uint8)


def nothing_kept(_device: torch.device, work: Callable[[], object]) -> int:
    work()
    return 0


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    for kernel in KERNELS:
        monkeypatch.setattr(kernel, "run", lambda *_args, **_kwargs: None)
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: GPU.index)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: properties)
    for module in (upload_module, replay):
        monkeypatch.setattr(module, "in_one_buffer", unfilled)
    monkeypatch.setattr(executor_module, "ForwardCompletion", Sent)
    monkeypatch.setattr(replay, "capture_for", lambda _device: call_again)
    monkeypatch.setattr(replay, "kept_bytes", nothing_kept)
    with ExitStack() as modes:
        # Entered in turn: what they look at is made inside.
        modes.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        modes.enter_context(OnOneDevice())
        modes.enter_context(torch.inference_mode())
        yield GPU


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


def launch(executor: PackedExecutor, read: Labels | Vectors, *, cached: int = 0) -> Sent:
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
    assert completion.shape == (plan.reads.num_values,)
    return completion  # type: ignore[no-any-return]


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
    gpu: torch.device,
    make: Callable[[torch.device], TinyModel],
    way: AttentionWay,
    graph_tokens: int,
) -> None:
    executor = PackedExecutor(make(gpu), readout_bytes=1 << 10, attention=way, caches_prefixes=True)
    if graph_tokens:
        executor.capture_graphs(graph_tokens)
    for cached in (0, 4, 9):
        for read in LABELS:
            launch(executor, read, cached=cached)
    replays = bool(graph_tokens) and way is not AttentionWay.TORCH
    assert executor.graph_use.forwards["graph"] == (12 if replays else 0)


@pytest.mark.parametrize("graph_tokens", [0, 64])
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("make", [VectorModel, EncoderModel])
def test_vectors_are_read_without_waiting(
    gpu: torch.device, make: type[VectorModel], way: AttentionWay, graph_tokens: int
) -> None:
    model = make(gpu)
    executor = PackedExecutor(
        model, readout_bytes=1 << 10, attention=way, caches_prefixes=model.causal
    )
    if graph_tokens:
        executor.capture_graphs(graph_tokens)
    for width in (HIDDEN, HIDDEN // 2):
        launch(executor, Vectors(width))
    replays = bool(graph_tokens) and way is not AttentionWay.TORCH
    assert executor.graph_use.forwards["graph"] == (2 if replays else 0)


def test_what_waits_is_seen(gpu: torch.device) -> None:
    numbers = torch.zeros(4, device=gpu)
    with pytest.raises(AssertionError, match="index"):
        numbers[torch.zeros(2, dtype=torch.int64)]
    with pytest.raises(RuntimeError):
        numbers.sum().item()
    with pytest.raises(RuntimeError):
        numbers.nonzero()

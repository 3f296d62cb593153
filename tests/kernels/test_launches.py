"""How often the host launches something for a replayed forward.

Counted where the executor issues it: torch operations that are no views and allocate no more than
memory, kernels of Triton, replays, and transfers to the device. One transfer, that of the values
back, does not exist without CUDA and is added. Work inside of a replay is a part of one launch.
Of a torch operation CUDA may make more kernels than one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from prefill_kernels.label_readout.kernel import label_logits_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from bench import host_cost
from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.forward.executor import PackedExecutor
from sglang_prefill_ext.forward.graphs import replay
from sglang_prefill_ext.forward.graphs.capture import Capture, capture_for
from sglang_prefill_ext.forward.logits import ProductHead
from sglang_prefill_ext.forward.readers import labels
from sglang_prefill_ext.scheduling.planner import plan_forward
from sglang_prefill_ext.wire.reads import LabelKind
from sglang_prefill_ext.wire.sampling import Draw
from tests.kernels.conftest import COMPILED
from tests.kernels.test_graph_prefixes import FIRST_SLOTS, SECOND_SLOTS, piece_of, slots
from tests.kernels.test_graphs import DeviceModel

MOST = 10
_ALLOCATIONS = {"empty", "new_empty", "empty_strided", "empty_like"}


class HeadModel(DeviceModel):
    """Its output head is a matrix product, as that of every model of SGLang that is packed."""

    def product_head(self) -> ProductHead:
        return ProductHead(self.head.T.contiguous())


class Counting(TorchDispatchMode):
    """Counts what would be launched, unless it is a part of a launch itself."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: Counter[str] = Counter()
        self._inside = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        aliases = [each.alias_info for each in func._schema.returns]
        is_view = any(each is not None and not each.is_write for each in aliases)
        if not (self._inside or is_view or name in _ALLOCATIONS):
            self.launches[name] += 1
        return func(*args, **(kwargs or {}))

    @contextmanager
    def one(self, name: str) -> Iterator[None]:
        """Count the body as one launch, whatever it does."""
        self.launches[name] += not self._inside
        before, self._inside = self._inside, True
        try:
            yield
        finally:
            self._inside = before

    def wrapped(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            with self.one(name):
                return work(*args, **kwargs)

        return counted


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    counting = Counting()

    def one_launch(device: torch.device) -> Capture:
        capture = capture_for(device)
        return lambda work: counting.wrapped("replay", capture(work))

    monkeypatch.setattr(replay, "capture_for", one_launch)
    monkeypatch.setattr(labels, "upload", counting.wrapped("transfer", labels.upload))
    kernels = type(label_logits_kernel)
    launch = kernels.__getitem__
    monkeypatch.setattr(
        kernels, "__getitem__", lambda own, grid: counting.wrapped("kernel", launch(own, grid))
    )
    return counting


def launches(
    counting: Counting,
    device: torch.device,
    pieces: Sequence[Any],
    held: Sequence[list[int] | None],
    stores: Sequence[list[int] | None],
    *,
    normalised: bool = False,
) -> Counter[str]:
    """Launches of a forward that follows another one, on a server with a prefix cache."""
    model = HeadModel(device)
    executor = PackedExecutor(
        model, readout_bytes=1 << 20, attention=AttentionWay.FUSED, caches_prefixes=True
    )
    executor.capture_graphs(48)
    executor.launch(plan_forward([piece_of(2)])).wait()
    forward = plan_forward(pieces)
    for named, some in ((forward.held, held), (forward.stores, stores)):
        named[:] = [None if each is None else slots(model, each) for each in some]
    forward.reads.kinds[:] = LabelKind(0, normalised, Draw.NONE).number
    counting.launches.clear()
    with counting:
        completion = executor.launch(forward)
    completion.wait()
    assert executor.graph_use.forwards == {"graph": 2}
    counting.launches["transfer"] += not COMPILED  # of the values back
    return counting.launches


def test_a_replayed_forward_is_as_many_launches_as_the_arithmetic_says(
    counting: Counting, device: torch.device
) -> None:
    found = launches(counting, device, [piece_of(0)], [None], [None])
    assert found.total() == host_cost.replayed().launches, found


@pytest.mark.parametrize(
    ("pieces", "held", "stores", "more"),
    [
        ([(0, 11)], [FIRST_SLOTS], [None], {"copy_": 1}),
        ([(0, 11), (1, 7)], [FIRST_SLOTS, SECOND_SLOTS], [None, None], {"cat": 1, "copy_": 1}),
        ([(0, 0)], [None], [FIRST_SLOTS], {"cat": 1}),
        ([(0, 11), (1, 0)], [FIRST_SLOTS, None], [None, SECOND_SLOTS], {"cat": 1, "copy_": 1}),
    ],
)
def test_cached_prefixes_are_few_launches_more_however_many_layers_there_are(
    counting: Counting,
    device: torch.device,
    pieces: list[tuple[int, int]],
    held: list[list[int] | None],
    stores: list[list[int] | None],
    more: dict[str, int],
) -> None:
    plain = Counter(launches(counting, device, [piece_of(0)], [None], [None]))
    chosen = [piece_of(number, cached=cached) for number, cached in pieces]
    found = launches(counting, device, chosen, held, stores)
    assert found - plain == more
    assert found.total() <= MOST


def test_log_probs_over_the_vocabulary_are_more_launches_of_the_read_out(
    counting: Counting, device: torch.device
) -> None:
    """They take four more calls; on CUDA, torch launches several kernels for `logsumexp`."""
    plain = Counter(launches(counting, device, [piece_of(0)], [None], [None]))
    found = launches(counting, device, [piece_of(0)], [None], [None], normalised=True)
    assert found - plain == {"kernel": 1, "logsumexp": 1, "index": 1, "sub": 1}
    assert found.total() <= MOST

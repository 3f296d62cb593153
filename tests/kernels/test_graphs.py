"""Padded, static forwards of a small model against the same forwards run eagerly.

Without CUDA a replay runs the captured work again on the static buffers; fresh tensors hold NaN, so
that whatever is not written shows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.forward.device import require_usable
from sglang_prefill_ext.forward.executor import PackedExecutor
from sglang_prefill_ext.forward.graphs import replay as graphs_module
from sglang_prefill_ext.forward.graphs.capture import Capture, Work
from sglang_prefill_ext.forward.graphs.forward_graph import ForwardGraph
from sglang_prefill_ext.forward.graphs.plan import GraphUse
from sglang_prefill_ext.forward.graphs.replay import PackedGraphs
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.planner import ForwardPlan, plan_forward
from sglang_prefill_ext.scheduling.split import split_request
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Vectors
from tests.kernels.devices import never_waiting
from tests.unit.forward.tiny_model import HIDDEN, TinyModel
from tests.unit.wire.strategies import VOCAB, PlainRequest

WAYS = [AttentionWay.FUSED, AttentionWay.MERGE]
LARGEST = 48
SIZES = (16, 24, 32, 48)
each_way = pytest.mark.parametrize("way", WAYS)


class DeviceModel(TinyModel):
    """A model on the device of the kernels; whole layers if it does not shorten the last one."""

    def __init__(self, device: torch.device, *, shortens: bool = True) -> None:
        super().__init__()
        self.move(device)
        if not shortens:
            self.last_layer = None


class DeviceEncoder(DeviceModel):
    """A bidirectional model; it makes an embedding of a prompt's first token, or classes.

    Args:
        classes: how many; 0 for an embedding of length 1.
    """

    causal = False

    def __init__(self, device: torch.device, classes: int) -> None:
        super().__init__(device, shortens=False)
        self.vector_width, self.unit_length = classes or HIDDEN, not classes

    def _run(self, *inputs: Any) -> Tensor:
        hidden = super()._run(*inputs)
        if self.unit_length:
            return normalize(hidden, dim=-1)
        return (hidden @ self.head[:, : self.vector_width]).softmax(-1)


def request(seed: int, prefix: int, *suffixes: int) -> PlainRequest:
    rng = np.random.default_rng(seed)
    labels = [[3, 5]] * len(suffixes)
    ids = [rng.integers(0, VOCAB, length).tolist() for length in (prefix, *suffixes)]
    return PlainRequest(ids[0], ids[1:], labels, shared_labels=True)


def plan(*requests: PlainRequest) -> ForwardPlan:
    return plan_forward([split_request(each.pack(), ForwardBudget(1000))[0] for each in requests])


FORWARDS = {
    "one_row": plan(request(1, 0, 7)),
    "rows_behind_a_prefix": plan(request(2, 9, 2, 2, 1, 3)),
    "exactly_full": plan(request(3, 10, 3, 3)),
    "as_many_rows_as_fit": plan(request(4, 0, *[1] * 16)),
    "rows_of_one_token": plan(request(10, 10, *[1] * 38)),
    "several_groups": plan(request(5, 4, 2, 2), request(6, 0, 5, 1), request(7, 3, 20)),
    "long_rows": plan(request(8, 0, 40)),
}


PROMPTS = {
    "one_row": [[7]],
    "one_token": [[1]],
    "padded": [[5, 1, 9]],
    "exactly_full": [[3, 10, 3]],
    "many_rows": [[1] * 20 + [2] * 9],
    "several_groups": [[4], [2, 30], [3]],
    "as_many_tokens_as_fit": [[1] * 8, [40]],
}
"""Tokens of whole prompts, request by request."""


def whole_prompts(lens: list[list[int]], width: int) -> ForwardPlan:
    rng, pieces = np.random.default_rng(sum(map(sum, lens))), []
    for of_request in lens:
        tokens = rng.integers(0, VOCAB, sum(of_request), dtype=np.int32)
        rows = PackedRows(tokens, 0, int_array(of_request), Vectors(width))
        pieces += split_request(rows, ForwardBudget(1000))
    return plan_forward(pieces)


def executor_with_graphs(
    model: TinyModel, way: AttentionWay, max_tokens: int = LARGEST
) -> PackedExecutor:
    executor = PackedExecutor(model, readout_bytes=1 << 20, attention=way)
    executor.capture_graphs(max_tokens)
    return executor


def graphs_of(model: TinyModel, way: AttentionWay) -> PackedGraphs:
    return PackedGraphs(model, way, None, GraphUse(), LARGEST)


def answer(executor: PackedExecutor, forward: ForwardPlan) -> np.ndarray:
    with never_waiting():
        completion = executor.launch(forward)
    return completion.wait()


@each_way
@pytest.mark.parametrize("shortens", [True, False])
def test_replays_answer_as_eager_forwards_do(
    way: AttentionWay, shortens: bool, device: torch.device
) -> None:
    model = DeviceModel(device, shortens=shortens)
    eager = PackedExecutor(model, readout_bytes=1 << 20, attention=way)
    graphs = executor_with_graphs(model, way)
    assert graphs.graph_use.sizes == SIZES
    wanted = [(forward, answer(eager, forward)) for forward in FORWARDS.values()]
    # Each twice, after all others: nothing of an earlier forward may be left in the buffers.
    for forward, values in [*wanted, *reversed(wanted)]:
        np.testing.assert_allclose(answer(graphs, forward), values, rtol=0, atol=1e-5)
    assert graphs.graph_use.forwards == {"graph": 2 * len(FORWARDS)}
    assert not eager.graph_use.forwards


def test_a_library_whose_calls_are_planned_on_the_host_is_not_used_in_graphs(
    device: torch.device,
) -> None:
    model = DeviceModel(device)
    executor = executor_with_graphs(model, AttentionWay.MERGE_FA3, 16)
    eager = PackedExecutor(model, readout_bytes=1 << 20, attention=AttentionWay.MERGE)
    forward = FORWARDS["one_row"]
    wanted = answer(eager, forward)
    np.testing.assert_allclose(answer(executor, forward), wanted, rtol=0, atol=1e-5)
    assert executor.graph_use.forwards == {"graph": 1}


@each_way
@torch.inference_mode()
def test_padding_is_computed_like_any_row(way: AttentionWay, device: torch.device) -> None:
    """All results of a graph are finite, also those of padding."""
    graphs = graphs_of(DeviceModel(device), way)
    (graph,) = [each for each in graphs._graphs if each.tokens == LARGEST]
    for forward in FORWARDS.values():
        graph.run(forward)
        made = graph._replay()
        assert made.shape == (LARGEST, HIDDEN)
        assert made.isfinite().all()


@torch.inference_mode()
def test_what_is_read_is_not_overwritten_by_the_next_replay(device: torch.device) -> None:
    graphs = graphs_of(DeviceModel(device), AttentionWay.FUSED)
    first = graphs.run(FORWARDS["rows_behind_a_prefix"])
    assert first is not None
    before = first.clone()
    graphs.run(FORWARDS["exactly_full"])
    assert torch.equal(first, before)


def test_what_fits_no_graph_runs_eagerly_and_is_counted(device: torch.device) -> None:
    executor = executor_with_graphs(DeviceModel(device), AttentionWay.FUSED)
    assert np.isfinite(answer(executor, plan(request(9, 0, LARGEST + 1)))).all()
    assert np.isfinite(answer(executor, plan(*(request(9 + n, 1, 1) for n in range(4))))).all()
    assert np.isfinite(answer(executor, FORWARDS["one_row"])).all()
    assert executor.graph_use.forwards == {"too_large": 2, "graph": 1}


def test_graphs_hold_more_tokens_than_a_prompt(device: torch.device) -> None:
    model = DeviceModel(device)
    model.longest_prompt = 20
    model.positions = model.positions[: model.longest_prompt]
    executor = executor_with_graphs(model, AttentionWay.FUSED)
    assert executor.graph_use.sizes == SIZES
    assert np.isfinite(answer(executor, plan(request(9, 0, 20, 20)))).all()
    assert executor.graph_use.forwards == {"graph": 1}


@pytest.mark.parametrize(
    ("way", "classes"),
    [(AttentionWay.FUSED, 0), (AttentionWay.MERGE, 1), (AttentionWay.FUSED, 3)],
)
def test_replays_of_an_encoder_answer_as_eager_forwards_do(
    way: AttentionWay, classes: int, device: torch.device
) -> None:
    model = DeviceEncoder(device, classes)
    eager = PackedExecutor(model, readout_bytes=1 << 20, attention=way)
    graphs = executor_with_graphs(model, way)
    assert graphs.graph_use.sizes == SIZES
    forwards = [whole_prompts(lens, model.vector_width) for lens in PROMPTS.values()]
    wanted = [(forward, answer(eager, forward)) for forward in forwards]
    for forward, values in [*wanted, *reversed(wanted)]:
        found = answer(graphs, forward)
        assert found.shape == (forward.num_rows * model.vector_width,)
        np.testing.assert_allclose(found, values, rtol=0, atol=1e-5)
    assert graphs.graph_use.forwards == {"graph": 2 * len(PROMPTS)}


def test_without_kernels_there_is_no_graph(caplog: pytest.LogCaptureFixture) -> None:
    executor = executor_with_graphs(TinyModel(), AttentionWay.TORCH)
    assert executor.graph_use.obstacle == "attention by torch plans its calls on the host"
    (line,) = caplog.messages
    assert line == (
        "Packed forwards run eagerly, without CUDA graphs, because attention by torch plans its "
        "calls on the host"
    )
    assert np.isfinite(answer(executor, FORWARDS["one_row"])).all()
    assert executor.graph_use.forwards == {"no_graphs": 1}


def captures_one(_device: torch.device) -> Capture:
    """A `Capture` of only the first graph, the largest; later captures fail."""
    captured: list[Work] = []

    def capture(work: Work) -> Work:
        captured.append(work)
        if len(captured) > 1:
            raise RuntimeError("operation not permitted when stream is capturing")
        return work

    return capture


def exhausted(*_args: object) -> Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory")


def replays_once(work: Work) -> Work:
    """A `Capture` of graphs whose second replay fails."""
    runs = []

    def replay() -> Tensor:
        runs.append(work)
        if len(runs) > 1:
            raise RuntimeError("CUDA error:\nan illegal instruction")
        return work()

    return replay


def test_a_capture_that_fails_leaves_no_graph_and_forwards_run(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(graphs_module, "capture_for", captures_one)
    executor = executor_with_graphs(DeviceModel(device), AttentionWay.FUSED)
    assert executor.graph_use.sizes == ()
    assert "failed: RuntimeError: operation not permitted" in executor.graph_use.obstacle
    (line,) = caplog.messages
    assert line.endswith(executor.graph_use.obstacle)
    assert "\n" not in line
    assert np.isfinite(answer(executor, FORWARDS["one_row"])).all()
    assert executor.graph_use.forwards == {"no_graphs": 1}


def test_a_replay_that_fails_is_the_last_one_and_forwards_run(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(graphs_module, "capture_for", lambda _device: replays_once)
    model = DeviceModel(device)
    eager = PackedExecutor(model, readout_bytes=1 << 20, attention=AttentionWay.FUSED)
    executor = executor_with_graphs(model, AttentionWay.FUSED)
    forward = FORWARDS["rows_behind_a_prefix"]
    wanted = answer(eager, forward)
    for _ in range(4):
        np.testing.assert_allclose(answer(executor, forward), wanted, rtol=0, atol=1e-5)
    assert executor.graph_use.forwards == {"graph": 1, "no_graphs": 3}
    assert executor.graph_use.sizes == ()
    (line,) = caplog.messages
    assert line.endswith(
        "because a replay failed: RuntimeError: CUDA error: an illegal instruction"
    )


def test_memory_that_is_short_for_one_replay_stops_no_later_one(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = executor_with_graphs(DeviceModel(device), AttentionWay.FUSED)
    forward = FORWARDS["rows_behind_a_prefix"]
    wanted = answer(executor, forward)
    with monkeypatch.context() as changes:
        changes.setattr(ForwardGraph, "run", exhausted)
        with pytest.raises(torch.OutOfMemoryError):
            answer(executor, forward)
    np.testing.assert_allclose(answer(executor, forward), wanted, rtol=0, atol=1e-5)
    assert executor.graph_use.forwards == {"graph": 2}


def test_a_capture_that_fails_on_one_of_several_ranks_raises(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it, the others would replay their graphs, and wait for this rank."""
    monkeypatch.setattr(graphs_module, "capture_for", captures_one)
    model = DeviceModel(device)
    model.alone = False
    with pytest.raises(RuntimeError, match="not permitted"):
        executor_with_graphs(model, AttentionWay.FUSED)


def test_a_replay_that_fails_on_one_of_several_ranks_raises(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs_module, "capture_for", lambda _device: replays_once)
    model = DeviceModel(device)
    model.alone = False
    executor = executor_with_graphs(model, AttentionWay.FUSED)
    forward = FORWARDS["rows_behind_a_prefix"]
    assert np.isfinite(answer(executor, forward)).all()
    with pytest.raises(RuntimeError, match="an illegal instruction") as raised:
        answer(executor, forward)
    with pytest.raises(RuntimeError, match="an illegal instruction"):
        require_usable(device, 2, raised.value)  # ends the scheduler, as other ranks go on


def test_a_forward_whose_experts_are_counted_is_not_replayed(device: torch.device) -> None:
    executor = executor_with_graphs(DeviceModel(device), AttentionWay.FUSED)
    counted = iter([False, True, False])
    executor.counts_next = lambda _tokens: next(counted)
    values = [answer(executor, FORWARDS["one_row"]) for _ in range(3)]
    np.testing.assert_allclose(values[1:], [values[0]] * 2, rtol=0, atol=1e-5)
    assert executor.graph_use.forwards == {"graph": 2, "counted": 1}


def test_replays_can_be_stopped(device: torch.device, caplog: pytest.LogCaptureFixture) -> None:
    executor = executor_with_graphs(DeviceModel(device), AttentionWay.FUSED)
    executor.stop_replays("weights have moved")
    assert np.isfinite(answer(executor, FORWARDS["one_row"])).all()
    assert executor.graph_use.forwards == {"no_graphs": 1}
    assert executor.graph_use.obstacle == "weights have moved"
    (line,) = caplog.messages
    assert line.endswith("because weights have moved")


def test_without_graphs_there_is_nothing_to_stop(caplog: pytest.LogCaptureFixture) -> None:
    executor = PackedExecutor(TinyModel(), readout_bytes=1 << 20)
    executor.stop_replays("weights have moved")
    assert executor.graph_use.obstacle == ""
    assert not caplog.messages

"""Graphs of a small model with recurrent layers against the same forwards run eagerly."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sglang_prefill_ext.attention.inputs import LayerInputs
from sglang_prefill_ext.border.model.recurrent.delta_rule import carry, kernel_inputs
from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.forward.executor import PackedExecutor
from sglang_prefill_ext.forward.graphs import replay
from sglang_prefill_ext.forward.model import Attend, Recur
from sglang_prefill_ext.layout.recurrence_plan import Recurrence
from sglang_prefill_ext.recurrent.layers import LayerRule, RecurrentInputs, RuleWay
from sglang_prefill_ext.scheduling.planner import ForwardPlan
from tests.kernels.recurrent.interpreted import delta_rule_interpreted  # noqa: F401
from tests.kernels.test_graphs import DeviceModel, answer, plan, request
from tests.unit.forward.tiny_model import HEAD_DIM, HEADS, VALUE_DIM

pytestmark = pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")

WIDTH, VALUE_HEADS, DIM = 4, 2, 16
LARGEST = 128
"""Has room for 4 prefixes and 8 rows."""
SIZES = [32, LARGEST]
KINDS = {"delta rule": Recurrence(WIDTH), "convolution": Recurrence(WIDTH, carries=False)}


@pytest.fixture(autouse=True)
def _few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "sizes_up_to", lambda _max_tokens: SIZES)
    # A served model in float32 computes its states with torch on CUDA; this one uses kernels.
    monkeypatch.setattr(replay, "_obstacle", lambda *_: "")


each_kind = pytest.mark.parametrize("kind", KINDS)


class RecurrentModel(DeviceModel):
    """Beside the first layer's attention, a recurrent layer, whose output is added.

    The rule is always computed by SGLang's kernels, in half precision.
    """

    def __init__(self, device: torch.device, kind: str) -> None:
        super().__init__(device, shortens=False)
        self.recurrence, self.pool.states = KINDS[kind], {}  # type: ignore[assignment]
        draw = partial(torch.randn, generator=torch.Generator().manual_seed(5))
        heads = [(1, DIM), (1, DIM), (VALUE_HEADS, DIM)] if self.recurrence.carries else []
        channels = sum(number * size for number, size in heads) or HEADS * VALUE_DIM
        out = VALUE_HEADS * DIM if heads else channels

        def weight(*shape: int) -> Tensor:
            return (draw(*shape) / shape[0] ** 0.5).to(device)

        self.mix, self.conv = weight(HEADS * HEAD_DIM, channels), weight(channels, WIDTH).half()
        self.gates = weight(HEADS * HEAD_DIM, 2 * VALUE_HEADS)
        self.project = weight(out, HEADS * VALUE_DIM)
        way = RuleWay(partial(kernel_inputs, *weight(2, VALUE_HEADS)), carry)
        self.rule = LayerRule(heads, (VALUE_HEADS, DIM, DIM), way, way) if heads else None

    def prepare(
        self,
        ids: Tensor,
        positions: Tensor,
        at: Tensor,
        lens: list[int],
        attend: Attend,
        *rest: Any,
        recur: Recur | None = None,
        **options: Any,
    ) -> Callable[[], Tensor]:
        assert recur is not None

        def both(layer: int, inputs: LayerInputs) -> Tensor:
            attended = attend(layer, inputs)
            if layer:
                return attended
            given = inputs.q.flatten(1)
            mixed, gates = (given @ self.mix).half(), (given @ self.gates).half()
            carried = recur(
                layer,
                RecurrentInputs(
                    *(mixed, self.conv, None, self.rule),
                    gates.contiguous().split(VALUE_HEADS, dim=1) if self.rule else (),
                ),
            )
            out = carried.flatten(1).float() @ self.project
            return attended + out.view(-1, HEADS, VALUE_DIM)

        return super().prepare(ids, positions, at, lens, both, *rest, **options)


FORWARDS = {
    "one_row": plan(request(1, 0, 7)),
    "rows_behind_a_prefix": plan(request(2, 9, 2, 2, 1, 3)),
    "rows_of_several_chunks": plan(request(3, 66, 20, 3)),
    "exactly_full": plan(request(4, 0, 90, 38)),
    "as_many_rows_as_fit": plan(request(5, 3, *[1] * 8)),
    "as_many_prefixes_as_fit": plan(*(request(number, 2, 1, 2) for number in range(4))),
    "several_groups": plan(request(5, 4, 2, 2), request(6, 0, 5, 1), request(7, 3, 20)),
}
BEYOND = {
    "a_row_more": plan(request(5, 3, *[1] * 9)),
    "a_prefix_more": plan(*(request(number, 2, 1) for number in range(5))),
}


def executors(device: torch.device, kind: str) -> tuple[PackedExecutor, PackedExecutor]:
    """One with graphs, and one without."""
    graphs, eager = (
        PackedExecutor(
            RecurrentModel(device, kind), readout_bytes=1 << 20, attention=AttentionWay.FUSED
        )
        for _ in range(2)
    )
    graphs.capture_graphs(LARGEST)
    assert graphs.graph_use.obstacle == ""
    return graphs, eager


def agree(graphs: PackedExecutor, eager: PackedExecutor, forward: ForwardPlan) -> None:
    np.testing.assert_allclose(answer(graphs, forward), answer(eager, forward), rtol=0, atol=1e-5)


@each_kind
def test_replays_answer_as_eager_forwards_do(device: torch.device, kind: str) -> None:
    graphs, eager = executors(device, kind)
    for forward in FORWARDS.values():
        agree(graphs, eager, forward)
    # Nothing of an earlier forward may be left in the buffers.
    agree(graphs, eager, FORWARDS["one_row"])
    assert graphs.graph_use.forwards == {"graph": len(FORWARDS) + 1}


@pytest.mark.parametrize(
    ("kind", "counted"), [("delta rule", "too_large"), ("convolution", "graph")], ids=KINDS
)
def test_more_rows_or_prefixes_than_there_are_states_for_run_eagerly(
    device: torch.device, kind: str, counted: str
) -> None:
    """A convolution has no states of which there are too few."""
    graphs, eager = executors(device, kind)
    for forward in BEYOND.values():
        agree(graphs, eager, forward)
    assert graphs.graph_use.forwards == {counted: len(BEYOND)}


@each_kind
@torch.inference_mode()
def test_padding_is_finite(device: torch.device, kind: str) -> None:
    graphs, _ = executors(device, kind)
    assert graphs._graphs is not None
    for graph in graphs._graphs._graphs:
        graph.run(FORWARDS["one_row"])
        assert graph._replay().isfinite().all()

"""A packed request makes few objects that the garbage collector tracks, for any number of rows.

Every object that the collector tracks brings its next run nearer and makes it longer.
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from sglang_prefill_ext.attach.messages import (
    Rows,
    RowsAnswer,
    decode_from_engine,
    decode_from_frontend,
    encode,
)
from sglang_prefill_ext.config import Order
from sglang_prefill_ext.frontend.answers import flat_scores, label_rows
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.frontend.pack import pack_token_ids
from sglang_prefill_ext.scheduling.budget import ForwardBudget, QueueLoad
from sglang_prefill_ext.scheduling.planner import ForwardPlan
from sglang_prefill_ext.scheduling.policy import SchedulingPolicy
from sglang_prefill_ext.scheduling.runtime import PackedRuntime
from sglang_prefill_ext.wire.arrays import Float32Array, int_array
from sglang_prefill_ext.wire.packed import PackedResult, rows_from_bytes, to_bytes
from sglang_prefill_ext.wire.read import Labels

VOCAB = 1000
POLICY = SchedulingPolicy(
    budget=ForwardBudget(1 << 20),
    order=Order.SRPT,
    ageing=2,
    launch_tokens=100,
    limits=QueueLoad(tokens=1 << 20, rows=1 << 20, bytes=1 << 30),
)


@pytest.fixture(autouse=True)
def others_frozen() -> Iterator[None]:
    """Freeze objects of other tests, because looking through them would take most of the time."""
    gc.freeze()
    yield
    gc.unfreeze()


class Completion:
    def __init__(self, values: Float32Array) -> None:
        self._values = values

    def wait(self) -> Float32Array:
        return self._values


class Executor:
    asynchronous = False
    causal = True

    def launch(self, plan: ForwardPlan) -> Completion:
        return Completion(np.zeros(len(plan.reads.label_ids), dtype=np.float32))


class Tracked:
    """Counts the most tracked objects that are alive at the same time while the body runs."""

    def __enter__(self) -> Tracked:
        gc.collect()
        gc.disable()
        self.most = 0
        self._before = gc.get_count()[0]
        sys.setprofile(self._look)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        self._look()
        gc.enable()

    def _look(self, *_: object) -> None:
        self.most = max(self.most, gc.get_count()[0] - self._before)


def tracked_by_stage(num_rows: int) -> dict[str, int]:
    """Serve a scoring request of `num_rows` rows; return the tracked objects of each stage."""
    rng = random.Random(1)
    query = [rng.randrange(VOCAB) for _ in range(50)]
    items = [[rng.randrange(VOCAB) for _ in range(5)] for _ in range(num_rows)]
    labels = Labels(int_array([5, 9]))
    results: list[PackedResult] = []
    runtime = PackedRuntime(Executor(), lambda ended: results.extend(r for _, r in ended), POLICY)
    with Tracked() as packing:
        rows = pack_token_ids(query, items, False, labels, VOCAB)
    with Tracked() as sending:
        message = encode(Rows("1", to_bytes(rows), RequestOptions()))
        arrived = decode_from_frontend(message)
    assert isinstance(arrived, Rows)
    with Tracked() as serving:
        runtime.submit("1", rows_from_bytes(arrived.row_bytes), None)
        while not results:
            runtime.step()
    with Tracked() as answering:
        answer = decode_from_engine(encode(RowsAnswer("1", results[0])))
    assert isinstance(answer, RowsAnswer)
    with Tracked() as reading:
        values = answer.result.row_values()
        flat = flat_scores(values, rows.read, apply_softmax=True, temperature=1.0)
        scores = label_rows(flat, rows.read)
    assert len(scores) == num_rows
    stages = {"packing": packing, "sending": sending, "serving": serving}
    stages |= {"answering": answering, "reading": reading}
    return {name: stage.most for name, stage in stages.items()}


def test_rows_add_no_tracked_objects_but_the_lists_of_the_answer() -> None:
    tracked_by_stage(10)  # makes what is made once
    few, many = tracked_by_stage(10), tracked_by_stage(1010)
    added = {name: (many[name] - few[name]) / 1000 for name in many}
    assert added == {
        "packing": pytest.approx(0, abs=0.01),
        "sending": pytest.approx(0, abs=0.01),
        "serving": pytest.approx(0, abs=0.01),
        "answering": pytest.approx(0, abs=0.01),
        "reading": pytest.approx(1, abs=0.01),
    }
    assert sum(few.values()) < 250


def test_the_count_sees_objects() -> None:
    with Tracked() as tracked:
        kept = [[] for _ in range(100)]  # type: ignore[var-annotated]
    assert 100 <= tracked.most <= 110
    assert len(kept) == 100

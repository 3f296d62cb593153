"""Recording work: for real without CUDA; for CUDA only the order of the calls, without a device."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from sglang_prefill_ext.forward.graphs.capture import WARM_UPS, call_again, capture_for


def test_without_cuda_work_is_run_again_on_what_its_tensors_hold() -> None:
    static = torch.zeros(2)
    replay = capture_for(torch.device("cpu"))(lambda: static + 1)
    static.fill_(4)
    assert replay().tolist() == [5, 5]


def test_work_that_fails_fails_when_it_is_captured() -> None:
    def broken() -> Tensor:
        raise RuntimeError("waits for the device")

    with pytest.raises(RuntimeError, match="waits for the device"):
        call_again(broken)


class FakeStream:
    def __init__(self, name: str, calls: list[str]) -> None:
        self.name, self.calls = name, calls

    def wait_stream(self, other: FakeStream) -> None:
        self.calls.append(f"{self.name} waits for {other.name}")


class FakeGraph:
    calls: list[str]

    def replay(self) -> None:
        self.calls.append("replay")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done with `torch.cuda`, in order."""
    done: list[str] = []

    @contextmanager
    def on(stream: FakeStream) -> Iterator[None]:
        done.append(f"on {stream.name}")
        yield
        done.append(f"off {stream.name}")

    @contextmanager
    def capturing(graph: Any, pool: Any, stream: FakeStream, mode: str) -> Iterator[None]:
        done.append(f"capture on {stream.name} in {pool}, {mode}")
        yield
        done.append("captured")

    monkeypatch.setattr(FakeGraph, "calls", done, raising=False)
    fakes = {
        "Stream": lambda: FakeStream("side", done),
        "current_stream": lambda: FakeStream("current", done),
        "graph_pool_handle": lambda: "one pool",
        "stream": on,
        "set_stream": lambda stream: done.append(f"back on {stream.name}"),
        "graph": capturing,
        "CUDAGraph": FakeGraph,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return done


def test_with_cuda_work_is_warmed_up_captured_once_and_replayed_without_it(
    calls: list[str],
) -> None:
    result = torch.zeros(1)

    def work() -> Tensor:
        calls.append("work")
        return result

    capture = capture_for(torch.device("cuda"))
    replay = capture(work)
    assert calls == [
        "side waits for current",
        "on side",
        *["work"] * WARM_UPS,
        "off side",
        "current waits for side",
        "capture on side in one pool, thread_local",
        "work",
        "captured",
        "back on current",
    ]
    read = weakref.ref(work)
    del work
    gc.collect()
    assert read() is not None, "what the graph reads must stay where it is"
    calls.clear()
    assert replay() is replay() is result
    assert calls == ["replay", "replay"]


@pytest.mark.usefixtures("calls")
def test_with_cuda_all_graphs_write_their_results_to_the_same_rows() -> None:
    capture = capture_for(torch.device("cuda"))
    most, few = capture(lambda: torch.full((4, 3), 1.0)), capture(lambda: torch.full((2, 3), 2.0))
    assert few().tolist() == [[2.0] * 3] * 2
    assert most().tolist() == [*few().tolist(), [1.0] * 3, [1.0] * 3]
    assert few().data_ptr() == most().data_ptr()


def test_a_capture_that_fails_leaves_the_stream_as_it_was(calls: list[str]) -> None:
    runs = []

    def work() -> Tensor:
        runs.append("work")
        if len(runs) > WARM_UPS:
            raise RuntimeError("operation not permitted when stream is capturing")
        return torch.zeros(1)

    with pytest.raises(RuntimeError, match="not permitted"):
        capture_for(torch.device("cuda"))(work)
    assert calls[-1] == "back on current"

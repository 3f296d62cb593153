"""Which stream waits for which; no device is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from sglang_prefill_ext.forward.device import in_order


class FakeStream:
    def __init__(self, name: str, calls: list[str]) -> None:
        self.name, self.calls = name, calls

    def wait_stream(self, other: FakeStream) -> None:
        self.calls.append(f"{self.name} waits for {other.name}")


class Streams:
    """Two streams, one of which is current, and a record of the calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self._outer, self._inner = (FakeStream(n, self.calls) for n in ("scheduling", "forward"))
        self._current = self._outer
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self._current)

    @contextmanager
    def forward(self) -> Iterator[None]:
        self._current = self._inner
        try:
            yield
        finally:
            self._current = self._outer


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    return Streams(monkeypatch)


def test_work_is_launched_behind_what_the_scheduler_has_launched(streams: Streams) -> None:
    with in_order(streams.forward()):
        streams.calls.append(f"work on {torch.cuda.current_stream().name}")
    assert streams.calls == ["forward waits for scheduling", "work on forward"]


def test_after_a_failure_the_scheduler_goes_on_behind_what_was_launched(streams: Streams) -> None:
    with pytest.raises(MemoryError), in_order(streams.forward()):
        raise MemoryError
    assert streams.calls == ["forward waits for scheduling", "scheduling waits for forward"]
    assert torch.cuda.current_stream().name == "scheduling"

"""A failed forward fails only its own requests, unless no further forward can run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch.distributed import DistBackendError

from sglang_prefill_ext.forward.device import require_usable
from sglang_prefill_ext.scheduling.job import Job
from sglang_prefill_ext.scheduling.runtime import Ended, PackedRuntime
from sglang_prefill_ext.wire.arrays import Int32Array
from sglang_prefill_ext.wire.status import Status
from tests.unit.scheduling.caches import MemoryCache, MemoryTransaction
from tests.unit.scheduling.failing import JOINING, LARGE, PREFIX, FailingExecutor
from tests.unit.scheduling.jobs import request

pytestmark = pytest.mark.usefixtures("no_log")

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
FIRST = frozenset({1})

each_asynchronous = pytest.mark.parametrize("asynchronous", [False, True])


class Served:
    """A runtime, and how its jobs ended."""

    def __init__(
        self,
        executor: FailingExecutor,
        cache: MemoryCache | None = None,
        after_failure: Callable[[Exception], None] = lambda _error: None,
    ) -> None:
        self.statuses: dict[str, str] = {}
        args = (executor, self._take, JOINING)
        self.runtime = PackedRuntime(*args, cache=cache, after_failure=after_failure)

    def submit(self, *prefixes: list[int]) -> None:
        for number, prefix in enumerate(prefixes):
            self.runtime.submit(f"job-{number}", request(prefix).pack(), None)

    def finish(self) -> None:
        while self.runtime.busy:
            self.runtime.step()

    def _take(self, ended: Sequence[Ended]) -> None:
        self.statuses |= {job.rid: result.status for job, result in ended}


def _lost(_error: Exception) -> None:
    raise torch.AcceleratorError("an illegal memory access was encountered")


@each_asynchronous
@pytest.mark.parametrize("place", ["failing_launches", "failing_waits"])
def test_a_device_that_is_lost_ends_the_step(asynchronous: bool, place: str) -> None:
    served = Served(FailingExecutor(asynchronous, **{place: FIRST}), after_failure=_lost)
    served.submit(PREFIX)
    with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
        served.finish()
    assert not served.statuses


@each_asynchronous
@pytest.mark.parametrize("place", ["failing_launches", "failing_waits"])
def test_a_device_that_answers_serves_the_others(asynchronous: bool, place: str) -> None:
    seen: list[Exception] = []
    served = Served(FailingExecutor(asynchronous, **{place: FIRST}), after_failure=seen.append)
    served.submit(PREFIX)
    served.finish()
    served.submit(PREFIX)
    served.finish()
    assert len(seen) == 1
    assert served.runtime.stats.requests == {"failed": 1, "ok": 1}


class _UncommittedTransaction(MemoryTransaction):
    def commit(self) -> None:
        super().rollback()
        raise RuntimeError("the tree is broken")


class _CacheThatCannotKeep(MemoryCache):
    def __init__(self, broken: list[int]) -> None:
        super().__init__()
        self._broken = broken

    def begin(self, prefix: Int32Array, adapter: str = "", *, keep: bool) -> MemoryTransaction:
        if prefix.tolist() != self._broken:
            return super().begin(prefix, adapter, keep=keep)
        transaction = _UncommittedTransaction(self, tuple(self._broken), private=False)
        self.begun.append(transaction)
        return transaction


@each_asynchronous
def test_a_prefix_that_cannot_be_kept_is_its_jobs_failure(asynchronous: bool) -> None:
    """Other jobs of the forward, whose transactions had not ended, are tried again."""
    other = PREFIX[::-1]
    cache = _CacheThatCannotKeep(other)
    served = Served(FailingExecutor(asynchronous), cache)
    served.submit(other, PREFIX)
    served.finish()
    assert served.statuses == {"job-0": "failed", "job-1": "ok"}
    assert set(cache.committed) == {tuple(PREFIX)}
    assert "" not in cache.outcomes


@each_asynchronous
def test_a_long_prefix_that_cannot_be_kept_fails_no_job_but_may_end_the_step(
    asynchronous: bool,
) -> None:
    seen: list[Exception] = []
    cache = _CacheThatCannotKeep(LARGE)
    served = Served(FailingExecutor(asynchronous), cache, after_failure=seen.append)
    served.submit(LARGE)
    served.finish()
    assert served.statuses == {"job-0": "ok"}
    assert [str(error) for error in seen] == ["the tree is broken"]
    cache.check_idle()


def test_an_answer_that_cannot_be_made_is_its_jobs_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Job.answer

    def broken(job: Job) -> np.ndarray:
        if job.rid == "job-0":
            raise IndexError("no such value")
        return answer(job)

    monkeypatch.setattr(Job, "answer", broken)
    served = Served(FailingExecutor())
    served.submit(PREFIX, PREFIX)
    served.finish()
    assert served.statuses == {"job-0": Status.FAILED, "job-1": Status.OK}
    assert served.runtime.stats.requests == {"failed": 1, "ok": 1}


def _synchronize(error: Exception | None) -> Callable[[torch.device], None]:
    def synchronize(device: torch.device) -> None:
        assert device is CUDA
        if error is not None:
            raise error

    return synchronize


@pytest.mark.parametrize(
    ("answer", "ends"),
    [
        (None, False),
        (torch.OutOfMemoryError("CUDA out of memory"), False),
        (torch.AcceleratorError("CUDA error: unspecified launch failure"), True),
    ],
    ids=str,
)
def test_a_device_is_asked_whether_it_is_broken(
    answer: Exception | None, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", _synchronize(answer))
    error = torch.OutOfMemoryError("CUDA out of memory")
    if not ends:
        require_usable(CUDA, 1, error)
        return
    with pytest.raises(torch.AcceleratorError, match="launch failure"):
        require_usable(CUDA, 1, error)


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), DistBackendError("timeout")],
    ids=repr,
)
def test_what_strikes_one_rank_of_several_ends_it(error: Exception) -> None:
    require_usable(CPU, 1, error)
    with pytest.raises(type(error)) as raised:
        require_usable(CPU, 2, error)
    assert raised.value is error


def test_what_strikes_every_rank_alike_ends_none() -> None:
    require_usable(CPU, 2, RuntimeError("probability tensor contains NaN"))

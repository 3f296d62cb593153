from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tenacity import Retrying

from sglang_prefill_ext.client.options import Deadline, Options, Retries
from sglang_prefill_ext.errors import (
    ConfigError,
    DeadlineExceededError,
    PrefillExtError,
    RequestError,
    ServerBusyError,
    ServerRefusedError,
    ServerUnavailableError,
    UnexpectedAnswerError,
)
from sglang_prefill_ext.frontend.options import opted_out, options_of


@given(
    st.integers(-(2**31) + 1, 2**31 - 1),
    st.none() | st.floats(1e-6, 2_000_000),
    st.booleans(),
    st.booleans(),
)
def test_the_server_reads_what_was_meant(
    priority: int, left_s: float | None, keep_prefix: bool, stock: bool
) -> None:
    headers = Options(priority, keep_prefix=keep_prefix, stock=stock).headers(left_s)
    read = options_of(headers, now_ms=0)
    assert (read.priority, read.keep_prefix) == (priority, keep_prefix)
    assert opted_out(headers) is stock
    if left_s is None:
        assert read.deadline_ms is None
    else:
        assert read.deadline_ms == math.ceil(left_s * 1000)


def test_nothing_special_needs_no_header() -> None:
    assert Options().headers(None) == {}


@pytest.mark.parametrize("timeout_s", [0, -1.5, math.nan, math.inf, 3e6])
def test_a_timeout_that_no_server_takes_is_refused(timeout_s: float) -> None:
    with pytest.raises(RequestError, match=r"timeout_s: .*Leave it out"):
        Options(timeout_s=timeout_s)


def test_a_timeout_may_be_short() -> None:
    assert Options(timeout_s=0.001).timeout_s == 0.001


def test_time_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 101.0, 106.0])
    monkeypatch.setattr("sglang_prefill_ext.client.options.time.monotonic", lambda: next(clock))
    deadline = Deadline(5)
    assert [deadline.left_s(), deadline.left_s()] == [4.0, -1.0]


def test_numpys_seconds_are_as_exact_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_prefill_ext.client.options.time.monotonic", lambda: 1e9)
    options = Options(timeout_s=np.float32(5))  # type: ignore[arg-type]
    left_s = Deadline(options.timeout_s).left_s()
    assert left_s == 5.0
    assert options.headers(left_s) == Options().headers(5.0)


def test_without_a_timeout_there_is_always_time() -> None:
    assert Deadline(None).left_s() == math.inf


class Time:
    """A clock that moves only by sleeping."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def __call__(self) -> float:
        return sum(self.slept)


def attempts(retries: Retries, error: PrefillExtError, timeout_s: float | None = None) -> Time:
    """Fail at every attempt; return the times slept."""
    time = Time()
    with patch("sglang_prefill_ext.client.options.time.monotonic", time):
        retrying = retries.retrying(Retrying, Deadline(timeout_s)).copy(sleep=time.slept.append)
        with pytest.raises(type(error)) as raised:
            retrying(_failing(error))
    assert raised.value is error
    return time


def _failing(error: PrefillExtError) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def busy(retry_after_s: float) -> ServerBusyError:
    error = ServerBusyError("busy")
    error.retry_after_s = retry_after_s
    return error


@pytest.mark.parametrize("error", [busy(0), ServerUnavailableError()])
def test_waits_grow_up_to_a_limit_and_differ(error: PrefillExtError) -> None:
    slept = attempts(Retries(8, first_wait_s=1, longest_wait_s=10), error).slept
    assert len(slept) == 7
    for wait, longest in zip(slept, [1, 2, 4, 8, 10, 10, 10], strict=True):
        assert 0 <= wait <= longest
    assert len(set(slept)) == 7


def test_the_server_is_left_alone_as_long_as_it_asks() -> None:
    slept = attempts(Retries(3, first_wait_s=0.5), busy(20)).slept
    assert len(slept) == 2
    assert all(20 <= wait <= 31 for wait in slept)


def test_who_is_asked_for_the_same_does_not_come_back_together() -> None:
    first = [attempts(Retries(2, first_wait_s=0), busy(20)).slept[0] for _ in range(200)]
    assert min(first) >= 20
    assert max(first) - min(first) > 5  # seconds; all 200 within half of the range: 2**-200


@pytest.mark.parametrize("asked", [1e6, 1e300, float("inf")])
def test_nobody_is_left_alone_for_days(asked: float) -> None:
    slept = attempts(Retries(3, first_wait_s=0), busy(asked)).slept
    assert all(60 <= wait <= 90 for wait in slept)
    shorter = Retries(2, first_wait_s=0, longest_asked_s=2)
    assert attempts(shorter, busy(asked)).slept[0] <= 3


@pytest.mark.parametrize(
    "error", [ServerRefusedError(), DeadlineExceededError(), UnexpectedAnswerError()]
)
def test_what_would_fail_again_is_not_repeated(error: PrefillExtError) -> None:
    assert attempts(Retries(), error).slept == []


def test_nobody_sleeps_beyond_the_deadline() -> None:
    time = attempts(Retries(100), busy(3), timeout_s=10)
    assert len(time.slept) in (2, 3)
    assert time() < 10
    assert attempts(Retries(), busy(3), timeout_s=2).slept == []


def test_one_attempt_is_no_repeat() -> None:
    assert attempts(Retries(1), busy(0)).slept == []


def test_no_attempt_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_attempts: 0 is below 1\. Use 1"):
        Retries(0)


def test_success_ends_the_repeats() -> None:
    counter = itertools.count()

    def third_time() -> str:
        if next(counter) < 2:
            raise ServerUnavailableError
        return "answer"

    retries = Retries(first_wait_s=0)
    assert retries.retrying(Retrying, Deadline(None))(third_time) == "answer"
    assert next(counter) == 3

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from tenacity import Retrying

from sglang_prefill_ext.client.options import Deadline
from sglang_prefill_ext.client.retry import Retries
from sglang_prefill_ext.errors import (
    ConfigError,
    DeadlineExceededError,
    PrefillExtError,
    ServerBusyError,
    ServerRefusedError,
    ServerUnavailableError,
    UnexpectedAnswerError,
)


class Time:
    """A clock that moves only while somebody sleeps."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def __call__(self) -> float:
        return sum(self.slept)


def attempts(retries: Retries, error: PrefillExtError, timeout_s: float | None = None) -> Time:
    """Fail always; return what was slept."""
    time = Time()
    retrying = retries.retrying(Retrying, Deadline(timeout_s, time))
    with pytest.raises(type(error)) as raised:
        retrying.copy(sleep=time.slept.append)(_failing(error))
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

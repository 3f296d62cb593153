"""When a request is repeated: scoring only reads, so that doing it twice harms nobody."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TypeVar

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from sglang_prefill_ext.client.options import Deadline
from sglang_prefill_ext.errors import ConfigError, ServerBusyError, ServerUnavailableError

RetryingT = TypeVar("RetryingT", Retrying, AsyncRetrying)


@dataclass(frozen=True, slots=True)
class Retries:
    """How often and when a request is repeated that found the server away or busy.

    The wait before repeat n is random, up to ``first_wait_s * 2**(n-1)`` and `longest_wait_s`, so
    that clients do not come back together. What the server asks for in Retry-After comes on top,
    up to half as long again, since it asks all of them for the same.

    Attributes:
        max_attempts: of each request, the first one included; 1 for no repeats.
        first_wait_s: longest wait before the first repeat, in seconds.
        longest_wait_s: longest wait before any repeat, in seconds.
        longest_asked_s: most of what a server asks for that is granted, in seconds.

    Raises:
        ConfigError: `max_attempts` is below 1.
    """

    max_attempts: int = 5
    first_wait_s: float = 0.25
    longest_wait_s: float = 10.0
    longest_asked_s: float = 60.0

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ConfigError(
                f"max_attempts: {self.max_attempts} is below 1. Use 1 for no repeats."
            )

    def retrying(self, kind: type[RetryingT], deadline: Deadline) -> RetryingT:
        """Return tenacity's loop of that kind; it raises the last error.

        It gives up rather than sleep until `deadline` or beyond.
        """
        backoff = wait_random_exponential(multiplier=self.first_wait_s, max=self.longest_wait_s)
        enough = stop_after_attempt(self.max_attempts)

        def wait(state: RetryCallState) -> float:
            asked_s = min(_asked_for(state), self.longest_asked_s)
            return asked_s * random.uniform(1, 1.5) + backoff(state)

        def stop(state: RetryCallState) -> bool:
            return enough(state) or state.upcoming_sleep >= deadline.left_s()

        again = retry_if_exception_type((ServerBusyError, ServerUnavailableError))
        return kind(retry=again, wait=wait, stop=stop, reraise=True)


DEFAULT_RETRIES = Retries()


def _asked_for(state: RetryCallState) -> float:
    """Seconds that the server wants to be left alone."""
    assert state.outcome is not None, "waiting comes after an attempt"
    error = state.outcome.exception()
    assert isinstance(error, (ServerBusyError, ServerUnavailableError))
    return error.retry_after_s

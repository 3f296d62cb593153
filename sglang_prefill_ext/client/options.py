"""The options of a call, which become HTTP headers, its deadline, and when it is repeated."""

from __future__ import annotations

import math
import random
import time
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

from sglang_prefill_ext.client.kinds import checked, is_a
from sglang_prefill_ext.errors import (
    ConfigError,
    RequestError,
    ServerBusyError,
    ServerUnavailableError,
)
from sglang_prefill_ext.frontend.options import (
    KEEP_PREFIX_HEADER,
    OPT_OUT_HEADER,
    PRIORITY_HEADER,
    TIMEOUT_HEADER,
)

_LONGEST_S = 2_000_000.0  # the server takes at most 2**31 - 1 ms
_AGAIN = (ServerBusyError, ServerUnavailableError)


def _is_wait(seconds: float) -> bool:
    return is_a(seconds, float) and 0 <= seconds <= _LONGEST_S


@dataclass(frozen=True, slots=True)
class Options:
    """How a call is served.

    Attributes:
        priority: higher is served first, if the server's order looks at priorities.
        timeout_s: seconds for the whole call with all its requests and repeats; the server drops
            requests that it cannot serve in the time left. None for no limit.
        keep_prefix: the query will come again, so it is left in the server's prefix cache.
        stock: take the stock path.

    Raises:
        RequestError: one is of the wrong kind, or `timeout_s` is not a number of seconds that the
            server takes.
    """

    priority: int = 0
    timeout_s: float | None = None
    keep_prefix: bool = False
    stock: bool = False

    def __post_init__(self) -> None:
        checked("priority", self.priority, int)
        checked("keep_prefix", self.keep_prefix, bool)
        checked("stock", self.stock, bool)
        if self.timeout_s is not None and not (_is_wait(self.timeout_s) and self.timeout_s > 0):
            raise RequestError(
                f"timeout_s: {self.timeout_s!r} is not above 0 and at most {_LONGEST_S:.0f} "
                "seconds. Leave it out for no limit."
            )

    def headers(self, left_s: float | None) -> dict[str, str]:
        """Return the headers of a request that has `left_s` seconds left, None for no limit."""
        headers = {}
        if self.priority:
            headers[PRIORITY_HEADER] = str(self.priority)
        if left_s is not None:
            headers[TIMEOUT_HEADER] = str(math.ceil(left_s * 1000))
        if self.keep_prefix:
            headers[KEEP_PREFIX_HEADER] = "on"
        if self.stock:
            headers[OPT_OUT_HEADER] = "off"
        return headers


DEFAULT_OPTIONS = Options()


class Deadline:
    """When a call must be answered at the latest: `timeout_s` seconds from now; None for never."""

    def __init__(self, timeout_s: float | None) -> None:
        # numpy's float32 has too few digits for the sum.
        self._at = math.inf if timeout_s is None else time.monotonic() + float(timeout_s)

    def left_s(self) -> float:
        """Seconds left; infinite without a deadline, at most 0 once it has passed."""
        return self._at - time.monotonic()


RetryingT = TypeVar("RetryingT", Retrying, AsyncRetrying)


@dataclass(frozen=True, slots=True)
class Retries:
    """How often and when a request is repeated, if the server was away or busy.

    The wait before repeat n is random, up to ``first_wait_s * 2**(n-1)`` and `longest_wait_s`, so
    that clients do not come back together. The time of the server's Retry-After is added, and up to
    half of it more at random, because the server gives all clients the same time.

    Attributes:
        max_attempts: of each request, the first one included; 1 for no repeats.
        first_wait_s: longest wait before the first repeat, in seconds.
        longest_wait_s: longest wait before any repeat, in seconds.
        longest_asked_s: most seconds of a Retry-After that are observed.

    Raises:
        ConfigError: `max_attempts` is below 1, or a time is not from 0 to 2,000,000 seconds.
    """

    max_attempts: int = 5
    first_wait_s: float = 0.25
    longest_wait_s: float = 10.0
    longest_asked_s: float = 60.0

    def __post_init__(self) -> None:
        if checked("max_attempts", self.max_attempts, int, ConfigError) < 1:
            raise ConfigError(
                f"max_attempts: {self.max_attempts} is below 1. Use 1 for no repeats."
            )
        for name in ("first_wait_s", "longest_wait_s", "longest_asked_s"):
            if not _is_wait(getattr(self, name)):
                raise ConfigError(
                    f"{name}: {getattr(self, name)!r:.80} cannot be used. Give seconds, from 0 to "
                    f"{_LONGEST_S:.0f}."
                )

    def retrying(self, kind: type[RetryingT], deadline: Deadline) -> RetryingT:
        """Return tenacity's loop of that kind; it raises the last error.

        It gives up if the next wait would last until `deadline` or longer.
        """
        backoff = wait_random_exponential(multiplier=self.first_wait_s, max=self.longest_wait_s)
        enough = stop_after_attempt(self.max_attempts)

        def wait(state: RetryCallState) -> float:
            error = state.outcome and state.outcome.exception()
            assert isinstance(error, _AGAIN), "waiting comes after an attempt that failed so"
            asked_s = min(error.retry_after_s, self.longest_asked_s)
            return asked_s * random.uniform(1, 1.5) + backoff(state)

        def stop(state: RetryCallState) -> bool:
            return enough(state) or state.upcoming_sleep >= deadline.left_s()

        return kind(retry=retry_if_exception_type(_AGAIN), wait=wait, stop=stop, reraise=True)


DEFAULT_RETRIES = Retries()

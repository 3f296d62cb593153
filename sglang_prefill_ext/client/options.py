"""How a call is served, which goes into HTTP headers instead of the body, and its time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.options import (
    KEEP_PREFIX_HEADER,
    OPT_OUT_HEADER,
    PRIORITY_HEADER,
    TIMEOUT_HEADER,
)

_LONGEST_S = 2_000_000.0  # the server takes at most 2**31 - 1 ms


@dataclass(frozen=True, slots=True)
class Options:
    """How a call is served.

    Attributes:
        priority: higher is served first, in an order that looks at it.
        timeout_s: seconds for the whole call with all its requests and repeats; the server drops
            what it cannot serve in the time left. None: as long as it takes.
        keep_prefix: the query will come again, so it is left in the server's prefix cache.
        stock: take the stock path.

    Raises:
        RequestError: `timeout_s` is not a number of seconds that the server takes.
    """

    priority: int = 0
    timeout_s: float | None = None
    keep_prefix: bool = False
    stock: bool = False

    def __post_init__(self) -> None:
        if self.timeout_s is not None and not 0 < self.timeout_s <= _LONGEST_S:
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
    """When a call must have its answer.

    Args:
        timeout_s: seconds from now; None for no deadline.
        clock: seconds that never go back.
    """

    def __init__(
        self, timeout_s: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._at = math.inf if timeout_s is None else clock() + timeout_s

    def left_s(self) -> float:
        """Seconds left; infinite without a deadline, at most 0 once it has passed."""
        return self._at - self._clock()

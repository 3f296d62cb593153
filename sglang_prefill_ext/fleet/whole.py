"""Has requests that are not divided served: by one engine, or by another if that fails."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from sglang_prefill_ext.errors import EngineUnavailableError
from sglang_prefill_ext.fleet.loads import NO_ENGINE, Loads
from sglang_prefill_ext.fleet.replica import Replica

logger = logging.getLogger(__name__)

T = TypeVar("T")

_WHOLE_S = 0.05
"""Assumed cost of a whole request; only SGLang knows its real cost."""


class WholeRequests:
    """Has whole requests served.

    Args:
        replicas: has all that `loads` has.
        counts: gets their number as `whole`.
    """

    def __init__(self, replicas: Mapping[str, Replica], loads: Loads, counts: Counter[str]) -> None:
        self._replicas = replicas
        self._loads = loads
        self._counts = counts

    def available(self) -> list[Replica]:
        """Replicas that may get work, the least loaded first."""
        states = self._loads.snapshot(time.monotonic()).states
        usable = [self._replicas[name] for name, state in states.items() if state.available]
        return sorted(
            usable, key=lambda each: states[each.url].outstanding_s + _WHOLE_S * each.whole
        )

    async def served(
        self,
        serve: Callable[[Replica], Awaitable[T]],
        *,
        repeatable: Callable[[EngineUnavailableError], bool] = lambda _: True,
    ) -> T:
        """Have the least loaded engine serve a request.

        Args:
            repeatable: whether another engine may be asked after such an error.

        Raises:
            EngineUnavailableError: there is no engine, or none that answers.
        """
        replicas = self.available()
        if not replicas:
            raise EngineUnavailableError(NO_ENGINE)
        first = replicas[0]
        self._counts["whole"] += 1
        try:
            return await _counted(first, serve)
        except EngineUnavailableError as error:
            others = [each for each in self.available() if each.url != first.url]
            if not others or not repeatable(error):
                raise
            logger.warning("%s Another engine is asked.", error)
            return await _counted(others[0], serve)


async def _counted(replica: Replica, serve: Callable[[Replica], Awaitable[T]]) -> T:
    replica.whole += 1
    try:
        return await serve(replica)
    finally:
        replica.whole -= 1

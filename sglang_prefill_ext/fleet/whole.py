"""Has requests that are not divided served: by one engine, or by another if that fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
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
    """

    def __init__(self, replicas: Mapping[str, Replica], loads: Loads) -> None:
        self._replicas = replicas
        self._loads = loads

    def available(self) -> list[str]:
        """Replicas that may get work."""
        return list(self._waiting_s())

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
        first = self._least_loaded()
        try:
            return await _counted(first, serve)
        except EngineUnavailableError as error:
            if not repeatable(error) or not set(self.available()) - {first.url}:
                raise
            logger.warning("%s Another engine is asked.", error)
            return await _counted(self._least_loaded(without=[first.url]), serve)

    def _least_loaded(self, without: Sequence[str] = ()) -> Replica:
        waiting_s = self._waiting_s()
        names = [name for name in waiting_s if name not in without]
        if not names:
            raise EngineUnavailableError(NO_ENGINE)
        return self._replicas[min(names, key=lambda name: waiting_s[name])]

    def _waiting_s(self) -> dict[str, float]:
        states = self._loads.snapshot(time.monotonic()).states
        return {
            name: state.outstanding_s + _WHOLE_S * self._replicas[name].whole
            for name, state in states.items()
            if state.available
        }


async def _counted(replica: Replica, serve: Callable[[Replica], Awaitable[T]]) -> T:
    replica.whole += 1
    try:
        return await serve(replica)
    finally:
        replica.whole -= 1

"""Measures how long each stage of a process's start takes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import psutil

logger = logging.getLogger(__name__)


class Startup:
    """The stages of one process's start, each from the end of the one before.

    Args:
        begun_s: returns when the process began, in Unix time; called at the first stage.
    """

    def __init__(self, begun_s: Callable[[], float]) -> None:
        self._begun_s, self._last_s = begun_s, 0.0
        self._stages: dict[str, float] = {}

    def mark(self, stage: str) -> None:
        """Record that a stage has ended now; if a stage comes again, only the first time counts."""
        if stage in self._stages:
            return
        last_s, now_s = self._last_s if self._stages else self._begun_s(), time.time()
        self._stages[stage] = max(now_s - last_s, 0.0)
        self._last_s = now_s

    def as_dict(self) -> dict[str, float]:
        """Seconds by stage, in order, and their sum as ``total``."""
        seconds = {**self._stages, "total": sum(self._stages.values())}
        return {stage: round(value, 3) for stage, value in seconds.items()}

    def log(self, role: str) -> None:
        """Write the stages to the log."""
        stages = ", ".join(f"{stage} {value:.1f} s" for stage, value in self.as_dict().items())
        logger.info("Prefill-only serving: start of the %s: %s", role, stages)


STARTUP = Startup(lambda: psutil.Process().create_time())
"""The stages of this process."""

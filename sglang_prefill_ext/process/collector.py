"""Controls the garbage collector of one process, for an operator and for the server itself.

Collections look at every tracked object that was not frozen. What a server holds after its
warm-up (modules, model, tokenizer) lives as long as the process, so it is collected once and
frozen: afterwards a collection looks only at what requests have left since.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec

from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.metrics.pauses import PauseRecorder, Pauses

FROZEN_THRESHOLDS = (10_000, 10, 10)
"""Collection thresholds of a process that has frozen, unless SGLang's flag sets others. Python's
default of 700 young objects is reached after a few requests; collecting 10,000 takes 0.2 ms."""

GROWN_OBJECTS = 20_000
"""An idle process freezes again from this many objects tracked since the last freeze. A full
collection of so many takes half a millisecond."""


class GcAction(StrEnum):
    """What a process can be asked to do; it reports after each."""

    FREEZE = "freeze"  # collect, then exempt what is left from later collections
    UNFREEZE = "unfreeze"
    COLLECT = "collect"  # what is not frozen
    STATS = "stats"
    SETTLE = "settle"  # freeze, if idle and with many new objects; only the server asks for it


OFFERED = tuple(action for action in GcAction if action is not GcAction.SETTLE)
"""Actions that an operator may ask for."""


class GcReport(msgspec.Struct, frozen=True):
    """The state of one process after an action.

    Attributes:
        role: of the process in the server.
        objects: tracked objects of each generation, youngest first; frozen ones not included.
        frozen: objects that collections do not look at.
        collections: automatic and other ones of each generation since the start.
        collected: unreachable objects that this action found.
        thresholds: of each generation, see `gc.set_threshold`.
    """

    pid: int
    role: str
    objects: list[int]
    frozen: int
    collections: list[int]
    collected: int
    thresholds: list[int]
    pauses: Pauses


def action_of(body: bytes) -> GcAction:
    """Return the action that the JSON body of a request asks for.

    Raises:
        RequestError: it is not an object with an `action` of `OFFERED`.
    """
    names = ", ".join(OFFERED)
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _wrong("body", f'is not JSON ({error}). Send {{"action": "stats"}}.') from error
    if not isinstance(asked, dict):
        raise _wrong("body", f'must be an object, got {asked!r:.80}. Send {{"action": "stats"}}.')
    if unknown := sorted(asked.keys() - {"action"}):
        raise _wrong(unknown[0], "is not known here. Leave it out; the only field is action.")
    if (action := asked.get("action")) not in OFFERED:
        raise _wrong("action", f"must be one of {names}, got {action!r:.80}.")
    return GcAction(action)


class Collector:
    """The garbage collector of this process; one for each process.

    Args:
        role: of the process in the server.
        histogram: of its pauses, see `pause_histogram`; None leaves Prometheus out.
    """

    def __init__(self, role: str, histogram: Any = None) -> None:
        self._role = role
        self._histogram = histogram
        self._last: tuple[str, GcReport] | None = None
        self.pauses = PauseRecorder()
        self.pauses.install()

    def perform(
        self,
        action: GcAction,
        rid: str,
        *,
        thresholds: Sequence[int] | None = None,
        busy: bool = False,
    ) -> GcReport:
        """Act and report.

        Args:
            rid: id of the request; one that arrives several times is acted on once.
            thresholds: to set with a freeze, see `gc.set_threshold`.
            busy: whether the process has work, so that it does not settle.
        """
        if self._last is None or self._last[0] != rid:
            self._last = rid, self.report(self._act(action, thresholds, busy=busy))
            self.show_pauses()
        return self._last[1]

    def freeze_anew(self, thresholds: Sequence[int] | None) -> None:
        """Freeze what there is now, instead of what was frozen before.

        Frozen objects are never freed.
        """
        for action in (GcAction.UNFREEZE, GcAction.FREEZE):
            self.perform(action, action, thresholds=thresholds)

    def show_pauses(self) -> None:
        """Bring the metrics up to date; not during a collection, which may have interrupted code
        that holds a lock needed here."""
        for pause_s in self.pauses.take():
            if self._histogram is not None:
                self._histogram.observe(pause_s)

    def _act(self, action: GcAction, thresholds: Sequence[int] | None, *, busy: bool) -> int:
        collected = 0
        if action is GcAction.SETTLE:
            # A process that an operator has unfrozen stays unfrozen.
            if busy or not gc.get_freeze_count() or len(gc.get_objects()) < GROWN_OBJECTS:
                return 0
            action = GcAction.FREEZE
        if action in (GcAction.COLLECT, GcAction.FREEZE):
            collected = gc.collect()
        if action is GcAction.FREEZE:
            if thresholds is not None:
                gc.set_threshold(*thresholds)
            gc.freeze()
        if action is GcAction.UNFREEZE:
            gc.unfreeze()
        return collected

    def report(self, collected: int = 0) -> GcReport:
        """Report without acting.

        Args:
            collected: unreachable objects that an action has found.
        """
        return GcReport(
            pid=os.getpid(),
            role=self._role,
            objects=[len(gc.get_objects(generation)) for generation in range(3)],
            frozen=gc.get_freeze_count(),
            collections=collections_of_generations(),
            collected=collected,
            thresholds=list(gc.get_threshold()),
            pauses=self.pauses.summary(),
        )


def collections_of_generations() -> list[int]:
    """Return how many collections of each generation this process has seen."""
    return [generation["collections"] for generation in gc.get_stats()]


def _wrong(field: str, what: str) -> RequestError:
    return RequestError(f"{field} {what}", field=field)

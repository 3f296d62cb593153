"""Controls the garbage collection of all processes of a server from a front-end process."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import cached_property
from typing import Any

from sglang.srt.managers.multi_tokenizer_mixin import SocketMapping
from sglang.srt.runtime_context import get_device, get_parallel, get_serving

from sglang_prefill_ext.attach.broker import Broker
from sglang_prefill_ext.border.gc_control import act, collector_of
from sglang_prefill_ext.border.messages import GcReq
from sglang_prefill_ext.frontend.ask_processes import Questions
from sglang_prefill_ext.frontend.packed_path import PackedPath
from sglang_prefill_ext.process.collector import (
    FROZEN_THRESHOLDS,
    GcAction,
    GcReport,
    collections_of_generations,
)
from sglang_prefill_ext.process.idle_watch import IdleWatch
from sglang_prefill_ext.process.stages import STARTUP

logger = logging.getLogger(__name__)

_TIMEOUT_S = 8.0
"""Limit for the slowest process; SGLang's limit for its freeze at start is 10 s."""
_LOOK_S = 1.0


class FrontendGc:
    """Reaches every process of the server from one front-end process."""

    def __init__(self, manager: Any, path: PackedPath) -> None:
        self.broker: Broker | None = None
        """Serves front ends in other processes; None if the server accepts none."""
        self._manager = manager
        self._path = path
        self._collector = collector_of("tokenizer")
        self._rounds: Questions[list[GcReport]] = Questions()
        self._watch: asyncio.Task[None] | None = None

    async def act(self, action: GcAction) -> tuple[list[GcReport], bool]:
        """Have every process act; return the reports that come in time, and whether all came."""
        manager, thresholds = self._manager, thresholds_of_server()
        manager.auto_create_handle_loop()

        def send(rid: str) -> None:
            request = GcReq(rid=rid, action=action, gc_threshold=thresholds)
            manager._dispatch_to_scheduler(request)
            # At once, while the others act. `perform` ignores the same message when it comes round.
            self._collector.perform(action, rid, thresholds=thresholds, busy=self._busy)

        asked = [self._rounds.ask(send, _answers_of_a_round(), _TIMEOUT_S)]
        attached = 0
        if self.broker is not None:
            attached = len(self.broker.peers())
            asked.append(self.broker.collect_garbage(action, thresholds, _TIMEOUT_S))
        answers = [answer for each in await asyncio.gather(*asked) for answer in each]
        # A process may have reported several times, once for each replica.
        reports = {report.pid: report for answer in answers for report in answer}
        complete = len(answers) == _answers_of_a_round() + attached
        return sorted(reports.values(), key=lambda each: (each.role, each.pid)), complete

    def take(self, message: GcReq) -> None:
        """Act on a message that was passed on to here, and hand it to the front end that asked."""
        act(self._collector, message, busy=self._busy)
        asker = message.http_worker_ipc
        if asker == self._manager.tokenizer_ipc_name:
            self._rounds.deliver(message.rid, message.reports)
        else:
            self._neighbours.send_output(asker, message, is_tokenizer=True)

    async def freeze(self) -> None:
        """Freeze. The first call also starts a task that freezes new objects in idle times."""
        STARTUP.mark("warm_up")
        await self.act(GcAction.FREEZE)
        if self._watch is None:
            STARTUP.mark("freeze")
            STARTUP.log("front end")
            self._watch = asyncio.create_task(self._settle_when_idle())

    async def _settle_when_idle(self) -> None:
        watch = IdleWatch(self._path.config.gc_idle_s, _collections())
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await self._look(watch)
            except Exception:
                logger.exception("Looking after the garbage collection of an idle server failed")

    async def _look(self, watch: IdleWatch) -> None:
        self._collector.show_pauses()
        if watch.is_due(time.monotonic(), _collections(), busy=self._busy):
            await self.act(GcAction.SETTLE)
            watch.note_settled(_collections())

    @property
    def _busy(self) -> bool:
        return bool(self._manager.rid_to_state) or bool(self._path.exchange.in_flight)

    @cached_property
    def _neighbours(self) -> SocketMapping:
        return SocketMapping()


def thresholds_of_server() -> list[int]:
    """Return what a freeze sets, see `gc.set_threshold`: SGLang's flag, or our own."""
    return list(get_device().gc_threshold or FROZEN_THRESHOLDS)


def _answers_of_a_round() -> int:
    """Each replica's message reaches every front end and every detokenizer."""
    serving = get_serving()
    detokenizers = 0 if serving.skip_tokenizer_init else serving.detokenizer_worker_num
    return int(get_parallel().num_dp_ranks * (serving.tokenizer_worker_num + detokenizers))


def _collections() -> int:
    return sum(collections_of_generations())

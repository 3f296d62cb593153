"""The exchange closes when SGLang receives no answers any more; calls are aborted by name."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_prefill_ext.border.messages import PackedAbortReq
from sglang_prefill_ext.border.tokenizer_manager.call_records import CallRecords
from sglang_prefill_ext.border.tokenizer_manager.frontend_link import TokenizerManagerLink
from sglang_prefill_ext.config import PrefillOnlyConfig, TokenizerChoice
from sglang_prefill_ext.errors import EngineUnavailableError
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Labels
from sglang_prefill_ext.wire.status import Status
from tests.unit.border.tokenizer_manager.test_text_hooks import model_config

ROWS = PackedRows(int_array([5, 6]), 1, int_array([1]), Labels(int_array([7])))
CONFIG = PrefillOnlyConfig(tokenizer=TokenizerChoice.HUGGINGFACE)


class Manager:
    """What SGLang's manager has, as far as it receives answers; a scheduler that gives none."""

    def __init__(self) -> None:
        self.tokenizer = SimpleNamespace(is_fast=False)
        self.model_config = model_config()
        self.model_update_lock = SimpleNamespace(reader_lock=asyncio.Lock())
        self.is_pause, self.is_pause_cond = False, asyncio.Condition()
        self.gracefully_exit = False
        self.rid_to_state: dict[str, Any] = {}
        self.enable_metrics = self.enable_trace = False
        self.dump_requests_folder = self.crash_dump_folder = ""
        self.request_logger = SimpleNamespace(log_requests=False)
        exporters = SimpleNamespace(exporter_enabled=lambda: False)
        self.request_metrics_exporter_manager = exporters
        self.asyncio_tasks: set[asyncio.Task[Any]] = set()
        self.sent: list[Any] = []
        self.asked = asyncio.Event()

    def _dispatch_to_scheduler(self, message: Any) -> None:
        self.sent.append(message)
        self.asked.set()

    def auto_create_handle_loop(self) -> None:
        if not self.asyncio_tasks:
            self.asyncio_tasks.add(asyncio.create_task(asyncio.Event().wait()))


async def ask(link: TokenizerManagerLink) -> Any:
    async with link.exchange.admitted(RequestOptions()):
        return await link.exchange.round_trip(ROWS, RequestOptions(), None)


@pytest.mark.parametrize(
    ("shuts_down", "why"), [(True, "is shutting down"), (False, "event loop .* has ended")]
)
async def test_requests_end_once_nothing_receives_answers(shuts_down: bool, why: str) -> None:
    manager = Manager()
    link = TokenizerManagerLink(manager, CONFIG, FrontendMetrics())
    asked = asyncio.create_task(ask(link))
    await manager.asked.wait()
    manager.gracefully_exit = shuts_down
    for task in manager.asyncio_tasks:
        task.cancel()
    answer = await asked
    assert answer.status is Status.UNREACHABLE
    with pytest.raises(EngineUnavailableError, match=why):
        await ask(link)
    assert len(manager.sent) == 1  # neither the second request nor an abort


async def test_calls_are_aborted_whose_names_begin_with_the_given_one() -> None:
    link = TokenizerManagerLink(manager := Manager(), CONFIG, FrontendMetrics())
    names = ("mine", "mine_0", "other", "min")
    manager.rid_to_state = {name: SimpleNamespace(abort_sent=False) for name in names}
    link.deliver_abort(PackedAbortReq(rid="mine"))
    assert [each.abort_sent for each in manager.rid_to_state.values()] == [True, True, False, False]


async def test_calls_without_a_name_of_a_client_are_aborted_by_their_whole_name_only() -> None:
    link = TokenizerManagerLink(manager := Manager(), CONFIG, FrontendMetrics())
    with CallRecords(manager).keeping(None, 1, dict) as record:
        (name,) = manager.rid_to_state
        for other in ("p", "prefill-only_", "", f"{name}0"):
            link.deliver_abort(PackedAbortReq(rid=other))
        assert not record.state.abort_sent
        link.deliver_abort(PackedAbortReq(rid=name))
        assert record.state.abort_sent

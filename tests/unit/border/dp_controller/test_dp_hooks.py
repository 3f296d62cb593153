from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers.data_parallel_controller import (
    DataParallelController,
    LoadBalanceMethod,
)

from sglang_prefill_ext.border.dp_controller import dp_hooks
from sglang_prefill_ext.border.messages import PackedRowsReq
from sglang_prefill_ext.shared_device.board import BOARD_VARIABLE, Board
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedRows, to_bytes
from sglang_prefill_ext.wire.read import Labels


@pytest.mark.parametrize("caching", [True, False])
def test_a_prefix_returns_to_the_scheduler_that_has_it_of_that_adapter(
    monkeypatch: pytest.MonkeyPatch, caching: bool
) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(dp_hooks, "sock_send", lambda worker, _: sent.append(worker))
    monkeypatch.setenv(BOARD_VARIABLE, Board.create(2).path)
    controller = SimpleNamespace(
        server_args=SimpleNamespace(disable_radix_cache=not caching), workers=["first", "second"]
    )
    send = dp_hooks._least_loaded(controller, schedulers=2)
    prefix = list(range(20))
    for adapter in ("", "a", "a", "", "b"):
        tokens = int_array([*prefix, 7])
        rows = PackedRows(
            tokens, len(prefix), int_array([1]), Labels(int_array([1])), adapter=adapter
        )
        send(PackedRowsReq(rid="r", row_bytes=to_bytes(rows)))
    homes = ["first", "second", "second", "first", "first"]
    assert sent == (homes if caching else ["first", "second"] * 2 + ["first"])


def test_a_request_without_bootstrap_room_does_not_end_the_controller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[Any] = []
    name = "sglang.srt.managers.data_parallel_controller.sock_send"
    monkeypatch.setattr(name, lambda worker, _: sent.append(worker))
    controller = object.__new__(DataParallelController)
    controller.workers, controller.status = ["first", "second"], [True, True]
    controller._active_workers, controller.round_robin_counter = [0, 1], 0
    controller.dispatching = controller.follow_bootstrap_room_scheduler
    controller.load_balance_method = LoadBalanceMethod.FOLLOW_BOOTSTRAP_ROOM
    dp_hooks._take_requests_without_room(controller)
    rows = PackedRows(int_array([1, 7]), 1, int_array([1]), Labels(int_array([1])))
    packed = PackedRowsReq(rid="r", row_bytes=to_bytes(rows))
    stock = SimpleNamespace(routed_dp_rank=None, bootstrap_room=None)
    of_the_pair = SimpleNamespace(routed_dp_rank=None, bootstrap_room=7)
    for message in (packed, stock, of_the_pair, packed):
        controller.dispatching(message)
    for health_check in (stock, of_the_pair):
        controller.dispatch_health_check(health_check)
    assert sent == ["first", "second", "second", "first", "second", "second"]

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_prefill_ext.border.activation import ATTRIBUTE
from sglang_prefill_ext.border.dp_controller import dp_hooks, several_schedulers
from sglang_prefill_ext.border.dp_controller.several_schedulers import (
    BOARD_ATTRIBUTE,
    ask_for_replicas,
    share_room,
    start_in_turn,
)
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.shared_device.board import BOARD_VARIABLE, Board
from sglang_prefill_ext.shared_device.placement import usable_cores

GIB = 1 << 30
BIND = "SGLANG_CPU_OMP_THREADS_BIND"


def args_of(config: PrefillOnlyConfig | None = None, **fields: Any) -> Any:
    """What the hooks read of SGLang's arguments, as its own defaults are."""
    defaults = {
        "dp_size": 1,
        "tp_size": 1,
        "pp_size": 1,
        "attn_dp_size": 1,
        "nnodes": 1,
        "max_total_tokens": None,
        "load_balance_method": "auto",
        "device": "cuda",
        "mem_fraction_static": None,
        "weight_cache_mode": "off",
        "disable_radix_cache": False,
    }
    carried = {} if config is None else {ATTRIBUTE: SimpleNamespace(config=config)}
    return SimpleNamespace(**(defaults | fields | carried))


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the hooks set for the processes that they start is gone afterwards."""
    for name in (BOARD_VARIABLE, BIND):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(several_schedulers, "resolving_view", lambda args: args)
    monkeypatch.setattr(dp_hooks, "collector_of", lambda role: None)  # it asks SGLang for labels
    cores = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, cores)


def at_rank(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    monkeypatch.setattr(several_schedulers, "get_parallel", lambda: SimpleNamespace(dp_rank=rank))


# Flags


def test_one_scheduler_changes_nothing() -> None:
    args = args_of(dp_size=3, tp_size=2, max_total_tokens=7)
    before = vars(args).copy()
    ask_for_replicas(args, PrefillOnlyConfig())
    assert vars(args) == before


def test_a_balance_that_the_user_chose_is_kept() -> None:
    args = args_of(load_balance_method="round_robin")
    ask_for_replicas(args, PrefillOnlyConfig(schedulers=2))
    assert (args.load_balance_method, args.max_total_tokens) == ("round_robin", None)


# Starts


class StubController:
    """Starts what takes a while, and notes in which order, on what and with which cores."""

    def __init__(self) -> None:
        self._scheduler_init_infos: list[dict[str, int]] = []
        self.under_way = 0
        self.started: list[tuple[int | None, int, list[int]]] = []

    def launch(
        self, server_args: Any, port_args: Any, gpu: int, rank: int | None, ports: Any = None
    ) -> None:
        assert (port_args, ports) == ("ports", None)
        self.under_way += 1
        assert self.under_way == 1
        self.started.append((rank, gpu, usable_cores()))
        self._scheduler_init_infos.append({})
        self.under_way -= 1


def start_all(controller: StubController, args: Any, schedulers: int) -> None:
    """As SGLang does: a thread for each, the last one first here."""
    hook = start_in_turn
    threads = [
        threading.Thread(
            target=hook, args=(StubController.launch, controller, args, "ports", rank, rank)
        )
        for rank in reversed(range(schedulers))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)


def test_schedulers_start_in_turn_on_one_device() -> None:
    controller = StubController()
    start_all(controller, args_of(PrefillOnlyConfig(schedulers=3)), 3)
    assert [started[:2] for started in controller.started] == [(0, 0), (1, 0), (2, 0)]
    board: Board = getattr(controller, BOARD_ATTRIBUTE)
    assert os.environ[BOARD_VARIABLE] == board.path
    assert board.done.tolist() == [0, 0, 0]
    assert BIND not in os.environ


@pytest.mark.parametrize("config", [None, PrefillOnlyConfig()])
def test_other_replicas_start_as_ever(config: PrefillOnlyConfig | None) -> None:
    controller = StubController()
    start_in_turn(StubController.launch, controller, args_of(config), "ports", 5, 3)
    assert [started[:2] for started in controller.started] == [(3, 5)]
    assert not hasattr(controller, BOARD_ATTRIBUTE)


# Memory


def test_the_first_works_out_the_share_and_the_others_take_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    board = Board.create(2)
    monkeypatch.setenv(BOARD_VARIABLE, board.path)
    args = args_of(PrefillOnlyConfig(schedulers=2), mem_fraction_static=0.75)
    configurator = SimpleNamespace(server_args=args)
    at_rank(monkeypatch, 0)
    assert share_room(50 * GIB, configurator, 80.0) == 20 * GIB  # the weights take 10
    assert (board.kv_bytes, board.reserve_bytes) == (20 * GIB, 10 * GIB)
    at_rank(monkeypatch, 1)
    assert share_room(35 * GIB, configurator, 50.0) == 20 * GIB
    assert not caplog.records
    assert share_room(5 * GIB, configurator, 50.0) == 5 * GIB
    assert "only 5.00 GiB for K/V of its share of 20.00 GiB" in caplog.text


def test_shared_weights_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BOARD_VARIABLE, Board.create(2).path)
    at_rank(monkeypatch, 0)
    config = PrefillOnlyConfig(schedulers=2)
    args = args_of(config, mem_fraction_static=0.75, weight_cache_mode="daemon")
    assert share_room(50 * GIB, SimpleNamespace(server_args=args), 80.0) == 25 * GIB


@pytest.mark.parametrize("config", [None, PrefillOnlyConfig()])
def test_one_scheduler_takes_what_it_finds(config: PrefillOnlyConfig | None) -> None:
    assert share_room(50 * GIB, SimpleNamespace(server_args=args_of(config)), 80.0) is None


# Balance and death

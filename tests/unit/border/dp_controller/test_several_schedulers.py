from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.shared_device.board import BOARD_VARIABLE, Board
from sglang_prefill_ext.shared_device.placement import usable_cores
from tests.unit.scheduling.jobs import request

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # SGLang's, about kernels that this machine lacks
    from sglang_prefill_ext.border.activation import ATTRIBUTE
    from sglang_prefill_ext.border.dp_controller import dp_hooks, several_schedulers
    from sglang_prefill_ext.border.dp_controller.several_schedulers import (
        BOARD_ATTRIBUTE,
        ask_for_replicas,
        share_room,
        start_in_turn,
    )
    from sglang_prefill_ext.border.messages import PackedRowsReq

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


def test_schedulers_become_replicas_that_divide_the_slots() -> None:
    args = args_of(max_total_tokens=1001)
    ask_for_replicas(args, PrefillOnlyConfig(schedulers=2))
    assert (args.dp_size, args.max_total_tokens) == (2, 500)
    assert args.load_balance_method == "total_tokens"


def test_one_scheduler_changes_nothing() -> None:
    args = args_of(dp_size=3, tp_size=2, max_total_tokens=7)
    before = vars(args).copy()
    ask_for_replicas(args, PrefillOnlyConfig())
    assert vars(args) == before


def test_a_balance_that_the_user_chose_is_kept() -> None:
    args = args_of(load_balance_method="round_robin")
    ask_for_replicas(args, PrefillOnlyConfig(schedulers=2))
    assert (args.load_balance_method, args.max_total_tokens) == ("round_robin", None)


@pytest.mark.parametrize(
    "flag", ["--dp-size", "--tp-size", "--pp-size", "--attn-dp-size", "--nnodes"]
)
def test_several_devices_are_refused(flag: str) -> None:
    given: dict[str, Any] = {flag.removeprefix("--").replace("-", "_"): 4}
    args = args_of(**given)
    with pytest.raises(ConfigError) as caught:
        ask_for_replicas(args, PrefillOnlyConfig(schedulers=2))
    assert f"--prefill-only-schedulers 2 cannot be combined with {flag} 4" in str(caught.value)
    assert "Leave out either" in str(caught.value)


def test_too_many_cores_are_refused() -> None:
    config = PrefillOnlyConfig(schedulers=2, scheduler_cores=10_000)
    with pytest.raises(ConfigError, match="--prefill-only-scheduler-cores 10000 needs 20000"):
        ask_for_replicas(args_of(), config)


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


def test_on_a_cpu_each_has_a_group_of_cores() -> None:
    controller = StubController()
    start_all(controller, args_of(PrefillOnlyConfig(schedulers=2), device="cpu"), 2)
    assert [started[:2] for started in controller.started] == [(0, 0), (1, 1)]
    groups = os.environ[BIND].split("|")
    assert len(groups) == 2
    assert {int(core) for group in groups for core in group.split(",")} <= set(usable_cores())


def test_cores_are_bound_where_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[list[int]] = []
    monkeypatch.setattr(several_schedulers, "usable_cores", lambda: [3, 5, 7])
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, cores: bound.append(cores))
    config = PrefillOnlyConfig(schedulers=3, scheduler_cores=1)
    start_all(StubController(), args_of(config), 3)
    assert bound == [[3], [5], [7]]
    monkeypatch.undo()


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


class RoutingController:
    """What `route_packed` finds in SGLang's controller."""

    def __init__(self, config: PrefillOnlyConfig, *, aware: bool) -> None:
        self.server_args = args_of(config)
        self.refresh_load_budget_on_dispatch = aware
        self.refreshed = 0
        self.dispatched: list[Any] = []
        self.workers = ["worker 0", "worker 1"]
        self.scheduler_procs: list[Any] = []
        self._request_dispatcher = SimpleNamespace(_mapping={})
        setattr(self, BOARD_ATTRIBUTE, Board.create(2))

    def refresh_load_budget(self) -> None:
        self.refreshed += 1

    def dispatching(self, message: Any) -> None:
        self.dispatched.append(message)

    def route(self, message: Any) -> None:
        self._request_dispatcher._mapping[type(message)](message)


def message_of(prefix: int, lens: list[int]) -> PackedRowsReq:
    rows = request([5] * prefix, *([6] * length for length in lens)).pack()
    return PackedRowsReq.of("rid", rows, RequestOptions())


def test_packed_requests_go_where_fewest_tokens_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(dp_hooks, "sock_send", lambda worker, message: sent.append(worker))
    controller = RoutingController(PrefillOnlyConfig(schedulers=2), aware=True)
    dp_hooks.route_packed(None, controller)
    controller.route(message_of(100, [50, 50]))
    controller.route(message_of(0, [10, 20]))
    loads: Any = controller.dp_budget  # type: ignore[attr-defined]
    assert sent == ["worker 0", "worker 1"]
    assert loads.outstanding.tolist() == [200, 30]
    getattr(controller, BOARD_ATTRIBUTE).done[:] += np.array([200, 0])
    assert loads.dispatch("total_tokens", 5) == 0
    assert (controller.dispatched, controller.refreshed) == ([], 2)


@pytest.mark.parametrize(("schedulers", "aware"), [(1, True), (2, False)])
def test_otherwise_sglang_chooses(*, schedulers: int, aware: bool) -> None:
    controller = RoutingController(PrefillOnlyConfig(schedulers=schedulers), aware=aware)
    dp_hooks.route_packed(None, controller)
    message = message_of(3, [1])
    controller.route(message)
    assert controller.dispatched == [message]
    assert not hasattr(controller, "dp_budget")


def test_a_replica_that_dies_ends_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[tuple[Any, Any]] = []

    class Watchdog:
        def __init__(self, processes: list[Any], names: list[str]) -> None:
            watched.append((processes, names))

        def start(self) -> None:
            watched.append(("started", []))

    monkeypatch.setattr(dp_hooks, "SubprocessWatchdog", Watchdog)
    controller = RoutingController(PrefillOnlyConfig(), aware=False)
    controller.scheduler_procs = ["a", "b"]
    dp_hooks.route_packed(None, controller)
    names = ["scheduler of replica 0", "scheduler of replica 1"]
    assert watched == [(["a", "b"], names), ("started", [])]

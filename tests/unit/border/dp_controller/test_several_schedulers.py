from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_prefill_ext.border.activation import ATTRIBUTE
from sglang_prefill_ext.border.dp_controller import several_schedulers
from sglang_prefill_ext.border.dp_controller.several_schedulers import ask_for_replicas, share_room
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.shared_device.board import BOARD_VARIABLE, Board

GIB = 1 << 30


def args_of(config: PrefillOnlyConfig | None = None, **fields: Any) -> Any:
    """The arguments of SGLang that the hooks read, with SGLang's defaults."""
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
def resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arguments are as SGLang would resolve them."""
    monkeypatch.setattr(several_schedulers, "resolving_view", lambda args: args)


def at_rank(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    monkeypatch.setattr(several_schedulers, "get_parallel", lambda: SimpleNamespace(dp_rank=rank))


def test_a_balance_that_the_user_chose_is_kept() -> None:
    args = args_of(load_balance_method="round_robin")
    ask_for_replicas(args, PrefillOnlyConfig(schedulers=2))
    assert (args.load_balance_method, args.max_total_tokens) == ("round_robin", None)


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

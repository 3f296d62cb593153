"""What runs at start so that no layer of experts is compiled while serving."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_prefill_ext.border.model import expert_layers, expert_setup
from sglang_prefill_ext.border.model.expert_hook import EXPERTS
from sglang_prefill_ext.forward.expert_blocks import LEAST_TOKENS
from sglang_prefill_ext.moe.blocks import Entry

ENTRIES = (Entry(64, 32), Entry(2048, 64), Entry(4096, 128))
EXPERT_COUNT = 60
DEVICE = torch.device("cuda")


def form(rows: int, tokens: int, top_k: int, block: int) -> tuple[bool, ...]:
    """What differs between forwards and makes Triton compile `fused_moe_kernel` again.

    Args:
        rows: of the product's input: `GDC_EARLY` is for 512 at most.
        tokens: of the forward, by which `moe_align_block_size` sizes the alignment.
    """
    valid = tokens * top_k
    aligned = valid * block
    if valid > EXPERT_COUNT:
        aligned = valid + (EXPERT_COUNT + 1) * (block - 1)
    aligned = -(-aligned // 4) * 4
    return rows <= 512, valid % 16 == 0, aligned % 16 == 0


def forms(tokens: int, top_k: int, block: int) -> set[tuple[Any, ...]]:
    """The forms of both projections."""
    return {
        ("up", *form(tokens, tokens, top_k, block)),
        ("down", *form(tokens * top_k, tokens, top_k, block)),
    }


@pytest.mark.parametrize("top_k", [1, 2, 4, 6, 8, 10])
def test_every_entry_runs_in_all_forms(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, top_k: int
) -> None:
    ran: defaultdict[Entry, set[tuple[Any, ...]]] = defaultdict(set)

    def work(_layer: Any, tokens: int, *_rest: Any) -> Any:
        assert isinstance(EXPERTS._forced, Entry)
        ran[EXPERTS._forced] |= forms(tokens, top_k, EXPERTS._forced.block)
        return SimpleNamespace

    monkeypatch.setattr(expert_setup, "expert_work", work)
    monkeypatch.setattr(expert_setup, "tuned_text", lambda _call: "tuning")
    monkeypatch.setattr(expert_setup, "cache_directory", lambda _name: tmp_path)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "H100")
    monkeypatch.setattr(expert_setup, "_seconds", lambda _layer, tokens, *_rest: float(tokens))
    call: Any = SimpleNamespace(w1=torch.empty(EXPERT_COUNT, 1, 1), top_k=top_k)
    for _measured in (False, True):
        ran.clear()
        times = expert_setup._times(ENTRIES, "shape", None, call, DEVICE)
        assert times.keys() == {*ENTRIES} == ran.keys()
        for entry in ENTRIES:
            served = (forms(tokens, top_k, entry.block) for tokens in range(LEAST_TOKENS, 5000))
            assert set().union(*served) <= ran[entry]


def test_a_block_is_timed_apart_from_the_launches_of_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now_s=0.0)

    def launch() -> Any:
        clock.now_s += 400e-6
        return SimpleNamespace(hidden_states=torch.zeros(1))

    def replay() -> None:
        clock.now_s += 5 * 30e-6

    def capture(series: Any) -> Any:
        series()
        return replay

    monkeypatch.setattr(expert_setup, "expert_work", lambda *_: launch)
    monkeypatch.setattr(expert_setup, "capture_for", lambda _device: capture)
    monkeypatch.setattr(expert_setup.time, "perf_counter", lambda: clock.now_s)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
    assert expert_setup._seconds(None, 64, DEVICE) == pytest.approx(30e-6)
    assert clock.now_s > 5 * 400e-6


@pytest.mark.parametrize(("on_input", "dtype"), [(False, torch.float32), (True, torch.bfloat16)])
def test_weights_of_experts_have_the_dtype_of_serving(on_input: bool, dtype: torch.dtype) -> None:
    """With another one, Triton would compile SGLang's kernel again."""
    seen: list[torch.dtype] = []
    layer: Any = SimpleNamespace(
        top_k=1,
        num_experts=4,
        num_local_experts=4,
        hidden_size=8,
        params_dtype=torch.bfloat16,
        moe_runner_config=SimpleNamespace(apply_router_weight_on_input=on_input),
        quant_method=SimpleNamespace(
            apply=lambda layer, dispatch_output: seen.append(
                dispatch_output.topk_output.topk_weights.dtype
            )
        ),
    )
    expert_layers.expert_work(layer, 3, torch.device("cpu"))()
    assert seen == [dtype]

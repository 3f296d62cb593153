"""How the known prompts are asked; what is answered needs a model, see `test_known_answers`."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_prefill_ext.border.scheduler import ask_both_paths
from sglang_prefill_ext.startup.answer_check import AnswerCheck, Tolerance
from sglang_prefill_ext.wire.arrays import int_array


def test_what_stock_batches_leave_behind_can_be_changed_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SGLang's allocator keeps tensors that it has made while the prompts were asked."""
    logits = torch.zeros(1, 4)
    left: list[torch.Tensor] = []

    class Batch:
        device, prefill_input_ids_cpu = "cpu", torch.zeros(2)

        def prepare_for_extend(self) -> None:
            assert not torch.is_grad_enabled()
            left.append(torch.ones(3))

    runner = SimpleNamespace(
        forward=lambda _batch: SimpleNamespace(
            logits_output=SimpleNamespace(next_token_logits=logits)
        )
    )
    nobody: dict[str, Any] = dict.fromkeys(
        ("req_to_token_pool", "token_to_kv_pool_allocator", "tree_cache", "model_config")
    )
    scheduler = SimpleNamespace(tp_worker=SimpleNamespace(model_runner=runner), **nobody)
    model: Any = SimpleNamespace(stream=nullcontext, vector_width=0)
    monkeypatch.setattr(ask_both_paths.ScheduleBatch, "init_new", lambda *_a, **_k: Batch())
    monkeypatch.setattr(ask_both_paths.ForwardBatch, "init_new", lambda *_a, **_k: None)
    monkeypatch.setattr(ask_both_paths, "release_kv_cache", lambda *_a, **_k: None)
    found = ask_both_paths._stock_output(scheduler, model, [int_array([1, 2])])
    assert found.shape == (1, 4)
    left[0].add_(1)
    assert not left[0].is_inference()


@pytest.mark.parametrize(("device", "usual"), [("cpu", 1e-4), ("cuda", 5e-3)])
@pytest.mark.parametrize("width", [0, 3])
def test_a_gpu_may_multiply_float32_in_tf32(device: str, usual: float, width: int) -> None:
    dtype = torch.float32
    model: Any = SimpleNamespace(dtype=dtype, device=torch.device(device), vector_width=width)
    unquantised = SimpleNamespace(quantization=None, num_hidden_layers=80)
    runner = SimpleNamespace(model_config=unquantised, kv_cache_dtype=dtype, dtype=dtype)
    assert ask_both_paths._tolerance(runner, model, 0.0) == (usual, usual)
    runner.kv_cache_dtype = torch.float8_e4m3fn
    assert ask_both_paths._tolerance(runner, model, 0.0).usual >= 0.1
    if not width:  # of so many layers
        assert ask_both_paths._tolerance(runner, model, 0.0).usual > 0.5


@pytest.mark.parametrize(
    ("device", "window", "held", "free", "exceeded"),
    [
        ("cuda", 512, 4_096, 4_096, 512),
        ("cuda", 0, 4_096, 4_096, 0),
        ("cuda", 4_096, 1 << 20, 1 << 20, 0),
        ("cuda", 512, 1_024, 4_096, 0),
        ("cuda", 512, 4_096, 1_024, 0),
        ("cpu", 512, 4_096, 4_096, 0),
    ],
)
def test_windows_are_exceeded_where_that_is_cheap_and_possible(
    device: str, window: int, held: int, free: int, exceeded: int
) -> None:
    model: Any = SimpleNamespace(window=window, device=torch.device(device))
    slots: Any = SimpleNamespace(capacity=held)
    allocator = SimpleNamespace(available_size=lambda: free)
    scheduler = SimpleNamespace(token_to_kv_pool_allocator=allocator)
    assert ask_both_paths._window(scheduler, model, slots) == exceeded


@pytest.mark.parametrize(
    ("free", "at_once", "fit"), [(1_000, None, 3), (30, None, 2), (1_000, 25, 2), (1_000, 3_000, 3)]
)
def test_a_batch_is_no_larger_than_sglangs(free: int, at_once: int | None, fit: int) -> None:
    allocator = SimpleNamespace(available_size=lambda: free, page_size=1)
    scheduler = SimpleNamespace(
        token_to_kv_pool_allocator=allocator,
        req_to_token_pool=SimpleNamespace(available_size=lambda: 16),
        chunked_prefill_size=at_once,
    )
    prompts = [int_array([0] * length) for length in (10, 10, 40)]
    assert len(ask_both_paths._of_one_batch(scheduler, prompts)) == fit


@pytest.mark.parametrize(("spread", "warned"), [(1e-5, True), (0.5, False)])
def test_answers_that_are_all_alike_are_reported(
    spread: float, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    check = AnswerCheck(((0, 1),), (0.0,), (0.0,), Tolerance(0.25, 1.0), 0.1, spread)
    ask_both_paths.report(check)
    found = [record for record in caplog.records if record.levelname == "WARNING"]
    assert ["sglang-prefill compare" in record.message for record in found] == [True] * warned

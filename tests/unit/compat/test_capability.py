"""Which servers with LoRA adapters are packed."""

from __future__ import annotations

import inspect
import warnings
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sglang_prefill_ext.compat.capability import declined_reason, reads_places

LINEAR = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")


@pytest.mark.parametrize(
    ("modules", "overlap", "experts", "reason"),
    [
        (LINEAR, False, False, "model_architecture"),  # which is looked at next
        (LINEAR, True, False, "lora_overlap_loading"),
        (LINEAR, False, True, "lora_experts"),
        ((*LINEAR, "lm_head"), False, False, "lora_vocabulary"),
        ((*LINEAR, "embed_tokens"), False, False, "lora_vocabulary"),
    ],
)
def test_adapters_that_packed_forwards_do_not_apply_are_declined(
    modules: tuple[str, ...], overlap: bool, experts: bool, reason: str
) -> None:
    manager = SimpleNamespace(
        target_modules=set(modules), lora_backend=SimpleNamespace(is_moe_lora=experts)
    )
    scheduler = SimpleNamespace(
        enable_lora=True,
        enable_lora_overlap_loading=overlap,
        is_generation=True,
        tp_worker=SimpleNamespace(
            model_runner=SimpleNamespace(model=object(), lora_manager=manager)
        ),
    )
    assert declined_reason(scheduler) == reason


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("qwen2_classification", "Qwen2ForSequenceClassification"),
        ("qwen3_classification", "Qwen3ForSequenceClassification"),
        ("llama_reward", "LlamaForSequenceClassification"),
        ("qwen2_rm", "Qwen2ForRewardModel"),
    ],
)
def test_heads_that_read_any_token_are_those_that_sglang_lets(module: str, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: Any = getattr(import_module(f"sglang.srt.models.{module}"), name)
    assert reads_places([name]) == ("score_and_pool" in code_names(model.forward))
    assert not reads_places([name, "Other"])
    assert not reads_places([])


def code_names(function: Any) -> tuple[str, ...]:
    """Names that a function calls, beneath its decorators."""
    names: tuple[str, ...] = inspect.unwrap(function).__code__.co_names
    return names

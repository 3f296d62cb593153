"""Whether the loaded model and this server can serve packed forwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sglang.srt.layers.pooler import Pooler, PoolingType
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention

PACKED_ARCHITECTURES = frozenset(
    {
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
    }
)
"""Model classes whose packed numbers are compared with stock and Hugging Face by the tests."""

VECTOR_ARCHITECTURES = frozenset(
    {
        "LlamaForCausalLM",
        "LlamaForSequenceClassification",
        "MistralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen2ForSequenceClassification",
        "Qwen3ForCausalLM",
        "Qwen3ForSequenceClassification",
    }
)
"""Likewise of models that make a vector of every prompt: embeddings, classes, rewards."""


def declined_reason(scheduler: Any) -> str:
    """Return why this scheduler declines packed requests, or "" if it can run them.

    Reasons are short names; the frontend counts stock-path requests by them.
    """
    runner = scheduler.tp_worker.model_runner
    if scheduler.enable_lora:
        return "lora"
    known = PACKED_ARCHITECTURES if scheduler.is_generation else VECTOR_ARCHITECTURES
    if type(runner.model).__name__ not in known:
        return "model_architecture"
    if not scheduler.is_generation and not _reads_last_token(runner.model.pooler):
        return "pooling"
    if getattr(runner.model, "capture_aux_hidden_states", False):
        return "aux_hidden_states"
    return next(_attention_reasons(runner.model), "")


def _reads_last_token(pooler: Any) -> bool:
    return type(pooler) is Pooler and pooler.pooling_type == PoolingType.LAST


def _attention_reasons(model: Any) -> Iterator[str]:
    """Yield what packed attention does not compute (yet), over all layers."""
    layers = [m for m in model.modules() if isinstance(m, RadixAttention)]
    if not layers:
        yield "no_attention_layers"
    for layer in layers:
        if layer.sliding_window_size not in (None, -1):
            yield "sliding_window"
        if layer.logit_cap:
            yield "logit_soft_cap"
        if layer.is_cross_attention or layer.attn_type != AttentionType.DECODER:
            yield "cross_attention"
        if layer.use_irope or layer.xai_temperature_len > 0:
            yield "attention_variant"

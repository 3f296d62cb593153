"""Decide whether the loaded model and this server can run packed forwards, by model class."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from sglang.srt.layers.pooler import CrossEncodingPooler, Pooler, PoolingType
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention
from sglang.srt.layers.rotary_embedding.rope_variant import Phi3LongRoPEScaledRotaryEmbedding

from sglang_prefill_ext.attention.inputs import HeadShape
from sglang_prefill_ext.border.model.model_classes import (
    EMBEDDING_GEMMA,
    ENCODER_ARCHITECTURES,
    RESIDUAL_IN_LAYERS,
    RESIDUAL_ON_BATCH,
    VECTOR_ARCHITECTURES,
    longest_packed,
)
from sglang_prefill_ext.border.model.recurrent.layers import recurrent_layers
from sglang_prefill_ext.wire.stock_reason import StockReason

_ROTATIONS_BY_LENGTH = frozenset({"dynamic", "longrope"})
"""Rotations of Transformers that the longest prompt of a batch decides."""


def declined_reason(scheduler: Any) -> StockReason | None:
    """Return why this scheduler declines packed requests, or None if it can run them."""
    runner = scheduler.tp_worker.model_runner
    architecture = type(runner.model).__name__
    if scheduler.enable_lora and architecture in ENCODER_ARCHITECTURES:
        return StockReason.LORA_ENCODER
    if scheduler.enable_lora and (reason := _adapters_reason(scheduler, runner.lora_manager)):
        return reason
    labels = RESIDUAL_ON_BATCH | RESIDUAL_IN_LAYERS
    vectors = VECTOR_ARCHITECTURES | ENCODER_ARCHITECTURES
    if architecture not in (labels if scheduler.is_generation else vectors):
        return StockReason.MODEL_ARCHITECTURE
    if not scheduler.is_generation and not _has_known_pooling(runner.model):
        return StockReason.POOLING
    if getattr(text_part(runner.model), "capture_aux_hidden_states", False):
        return StockReason.AUX_HIDDEN_STATES
    if _rotates_by_longest_prompt(runner):
        return StockReason.LONG_ROPE
    if runner.model_config.use_ngram_embedding:  # looks up tokens with those before them
        return StockReason.MODEL_ARCHITECTURE
    if (
        _stores_by_a_kernel_of_its_own(runner)
        or _attends_to_some_keys(runner.model)
        or _has_layers_without_attention(runner.model)
    ):
        return StockReason.ATTENTION_VARIANT
    return next(_attention_reasons(runner.model), None)


def _adapters_reason(scheduler: Any, manager: Any) -> StockReason | None:
    """Return why packed forwards cannot apply this server's LoRA adapters; None if they can."""
    if scheduler.enable_lora_overlap_loading:
        return StockReason.LORA_OVERLAP_LOADING
    if manager.lora_backend.is_moe_lora:
        return StockReason.LORA_EXPERTS
    # LoRA on the output head needs metadata of the tokens at which SGLang samples.
    if not manager.target_modules.isdisjoint(("embed_tokens", "lm_head")):
        return StockReason.LORA_VOCABULARY
    return None


def _has_known_pooling(model: Any) -> bool:
    kind, name = type(model.pooler), type(model).__name__
    encodes = name in ENCODER_ARCHITECTURES
    if encodes and kind is CrossEncodingPooler:
        return True
    known = PoolingType.CLS if encodes else PoolingType.LAST
    if name == EMBEDDING_GEMMA:
        known = PoolingType.MEAN
    # A sparse head is of another class; it returns no dense vectors.
    return kind is Pooler and model.pooler.pooling_type == known


def _rotates_by_longest_prompt(runner: Any) -> bool:
    """Whether one prompt changes the rotary embedding of all others, however short they all are.

    SGLang uses the long factors for a whole batch if any position needs them, and so do modules of
    Transformers.
    """
    longest = longest_packed(runner.model_config)
    return any(
        module.original_max_position_embeddings < longest
        if isinstance(module, Phi3LongRoPEScaledRotaryEmbedding)
        else not _ROTATIONS_BY_LENGTH.isdisjoint(_rotations(module))
        for module in runner.model.modules()
    )


def _rotations(module: Any) -> list[str]:
    """Kinds of rotation of a module of Transformers: one, or one for each kind of layer."""
    kinds = getattr(module, "rope_type", None)
    if isinstance(kinds, str):
        return [kinds]
    return [*kinds.values()] if isinstance(kinds, dict) else []


def _stores_by_a_kernel_of_its_own(runner: Any) -> bool:
    """Whether Hunyuan 3 uses SGLang's HPC-Ops, whose quantised queries only HPC-Ops can read."""
    return getattr(runner.attn_backend, "use_fp8", False) and any(
        getattr(module, "use_hpc_ops_fp8_attn", False) is not False
        for module in runner.model.modules()
    )


def _attends_to_some_keys(model: Any) -> bool:
    """Whether an indexer chooses the keys of each token, which any DeepSeek V3 may have."""
    return any(getattr(module, "use_dsa", False) is True for module in model.modules())


def _has_layers_without_attention(model: Any) -> bool:
    """Whether code of Transformers computes some layers in another way, as RecurrentGemma's.

    To such a layer all prompts of a forward are one sequence. SGLang makes an attention layer for
    it all the same. In Transformers, layers that attend say whether they are causal.
    """
    attending = {
        module.layer_idx
        for module in model.modules()
        if hasattr(module, "is_causal") and hasattr(module, "layer_idx")
    }
    return 0 < len(attending) < len(getattr(model, "attention_instances", ()))


def _attention_reasons(model: Any) -> Iterator[StockReason]:
    """Yield the reasons for which packed forwards cannot compute some layer's attention or rule."""
    layers, encoder = attention_layers(model), type(model).__name__ in ENCODER_ARCHITECTURES
    both_ways = (AttentionType.ENCODER_ONLY, AttentionType.DECODER_BIDIRECTIONAL)
    kinds = both_ways if encoder else (AttentionType.DECODER,)
    if not layers:
        yield StockReason.NO_ATTENTION_LAYERS
    for layer in layers:
        if layer.logit_cap and layer.logit_capping_method != "tanh":
            yield StockReason.LOGIT_SOFT_CAP
        if layer.is_cross_attention or layer.attn_type not in kinds:
            yield StockReason.CROSS_ATTENTION
        if layer.xai_temperature_len > 0:
            yield StockReason.ATTENTION_VARIANT
    activations = {getattr(layer, "activation", "silu") for layer in recurrent_layers(model)}
    if not activations <= {"silu", "swish"}:
        yield StockReason.ATTENTION_VARIANT


def text_part(model: Any) -> Any:
    """Return the part of a loaded model that reads text, and has the output head."""
    part = getattr(model, "language_model", getattr(model, "thinker", model))
    return part if hasattr(part, "model") else model  # Gemma 4 has the head on the whole model


def attention_layers(model: Any) -> list[Any]:
    """Return every attention layer of a loaded model, as packed forwards run it.

    Latent attention has one layer for K/V of all heads, which packed forwards run, and one over
    latents (``attn_mqa``).
    """
    kept_apart = getattr(model, "attention_instances", {})  # of SGLang's Transformers backend
    modules = chain(model.named_modules(), kept_apart.items())
    return [
        module
        for name, module in modules
        if isinstance(module, RadixAttention) and not str(name).endswith(".attn_mqa")
    ]


def head_shape(layer: Any, runner: Any) -> HeadShape:
    """Return the heads of an attention layer."""
    heads, dims = (layer.tp_q_head_num, layer.tp_k_head_num), (layer.qk_head_dim, layer.v_head_dim)
    chunked = layer.use_irope and runner.model_config.is_local_attention_model
    return HeadShape(*heads, *dims, int(runner.attention_chunk_size) if chunked else 0)

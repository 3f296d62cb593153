"""Model families that differ from each other only in their architecture: pure data."""

from collections.abc import Mapping
from typing import Any, NamedTuple

_TWO_OF_FOUR = {"num_local_experts": 4, "num_experts_per_tok": 2}
_MULTIPLIERS = {
    "embedding_multiplier": 2.0,
    "attention_multiplier": 0.25,
    "residual_multiplier": 1.5,
    "logits_scaling": 1.25,
}
"""None is 1, or what it would be unless given, so that a forgotten one shows."""

WINDOW = 32
"""Tokens; short enough that ordinary test prompts are longer than the sliding window."""
_SLIDING = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 150_000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
}


class Family(NamedTuple):
    """One architecture in the shape that all families have here.

    Attributes:
        summary: one line for people.
        model_type: the Hugging Face architecture name.
        more: configuration arguments beside the common shape.
    """

    summary: str
    model_type: str
    more: Mapping[str, Any]


def _family(summary: str, model_type: str, **more: Any) -> Family:
    return Family(summary, model_type, more)


FAMILIES: Mapping[str, Family] = {
    "qwen2": _family("Qwen2 family", "qwen2"),
    "qwen3": _family("Qwen3 family", "qwen3"),
    "llama": _family("Llama family", "llama"),
    "mistral": _family("Mistral family, full attention", "mistral", sliding_window=None),
    "ministral3": _family("Ministral 3 family", "ministral3"),
    "phi3": _family("Phi-3 and Phi-4 family", "phi3"),
    "arcee": _family("Arcee family: an MLP without a gate", "arcee"),
    "glm4": _family("GLM-4 family: norms after attention and MLP too", "glm4"),
    "granite": _family("Granite family: scaled embeddings and logits", "granite", **_MULTIPLIERS),
    "olmo2": _family("OLMo 2 family: norms after attention and MLP only", "olmo2"),
    "stablelm": _family("StableLM family: part of a head has a position", "stablelm"),
    "starcoder2": _family(
        "StarCoder2 family: biases, layer norm", "starcoder2", sliding_window=None
    ),
    "cohere": _family(
        "Command R family: attention and MLP side by side",
        "cohere",
        tie_word_embeddings=True,
        logit_scale=0.8,
    ),
    "cohere2": _family(
        "Command R7B family: every other layer with a sliding window of 32 tokens",
        "cohere2",
        tie_word_embeddings=True,
        logit_scale=0.8,
        **_SLIDING,
    ),
    "gemma2": _family(
        "Gemma 2: attention scores and logits have soft caps, every other layer a window",
        "gemma2",
        **_SLIDING,
        attn_logit_softcapping=5.0,
        query_pre_attn_scalar=32,
        hidden_act="gelu_pytorch_tanh",  # SGLang reads this older name too
        tie_word_embeddings=True,
    ),
    "gemma3": _family(
        "Gemma 3 (text): every other layer with a window and a rotary base of its own",
        "gemma3_text",
        **_SLIDING,
        query_pre_attn_scalar=32,
        tie_word_embeddings=True,
    ),
    "gpt-oss": _family(
        "gpt-oss: attention sinks, every other layer with a window, two of four experts",
        "gpt_oss",
        **_SLIDING,
        **_TWO_OF_FOUR,
        rope_parameters=_YARN,
    ),
    "qwen3-moe": _family(
        "Qwen3 mixture of experts, two of four experts per token",
        "qwen3_moe",
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=128,
        norm_topk_prob=True,
    ),
    "qwen2-moe": _family(
        "Qwen2 mixture of experts, two of four experts and a gated shared one per token",
        "qwen2_moe",
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=128,
        shared_expert_intermediate_size=192,
        norm_topk_prob=True,
    ),
    "olmoe": _family(
        "OLMoE, two of four experts per token; queries and keys have a norm over all heads",
        "olmoe",
        num_experts=4,
        num_experts_per_tok=2,
        num_key_value_heads=4,  # of grouped keys SGLang 0.5.23 cannot load the norm
    ),
    "ernie4-moe": _family(
        "Ernie 4.5: a dense layer, then two of four experts and a shared one per token",
        "ernie4_5_moe",
        moe_num_experts=4,
        moe_k=2,
        moe_num_shared_experts=1,
        moe_intermediate_size=128,
        moe_layer_start_index=1,
    ),
    "mixtral": _family(
        "Mixtral, two of four experts per token", "mixtral", **_TWO_OF_FOUR, sliding_window=None
    ),
    "granite-moe": _family(
        "Granite mixture of experts, two of four experts per token",
        "granitemoe",
        **_TWO_OF_FOUR,
        **_MULTIPLIERS,
    ),
    "granite-moe-shared": _family(
        "Granite mixture of experts, two of four experts and a shared one per token",
        "granitemoeshared",
        **_TWO_OF_FOUR,
        **_MULTIPLIERS,
        shared_intermediate_size=192,
    ),
    "glm4-moe": _family(
        "GLM-4.5: a dense layer, then two of four experts and a shared one per token",
        "glm4_moe",
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_shared_experts=1,
        moe_intermediate_size=128,
        first_k_dense_replace=1,
    ),
}

"""What a model family is, and those that have no experts: pure data."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

MULTIPLIERS = {
    "embedding_multiplier": 2.0,
    "attention_multiplier": 0.25,
    "residual_multiplier": 1.5,
    "logits_scaling": 1.25,
}
"""Of Granite. None is 1, or what it would be unless given, so that a forgotten one shows."""

WINDOW = 32
"""Tokens; short enough that ordinary test prompts are longer than the sliding window."""
SLIDING = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}


class Family(NamedTuple):
    """One architecture in the shape that all families have here.

    Attributes:
        summary: one line for people.
        model_type: the Hugging Face architecture name.
        more: configuration arguments beside the common shape.
    """

    summary: str
    model_type: str
    more: Mapping[str, Any] = MappingProxyType({})


DENSE: Mapping[str, Family] = MappingProxyType(
    {
        "qwen2": Family("Qwen2 family", "qwen2"),
        "qwen3": Family("Qwen3 family", "qwen3"),
        "llama": Family("Llama family", "llama"),
        "mistral": Family("Mistral family, full attention", "mistral", {"sliding_window": None}),
        "ministral3": Family("Ministral 3 family", "ministral3"),
        "phi3": Family("Phi-3 and Phi-4 family", "phi3"),
        "arcee": Family("Arcee family: an MLP without a gate", "arcee"),
        "glm4": Family("GLM-4 family: norms after attention and MLP too", "glm4"),
        "granite": Family("Granite family: scaled embeddings and logits", "granite", MULTIPLIERS),
        "olmo2": Family("OLMo 2 family: norms after attention and MLP only", "olmo2"),
        "stablelm": Family("StableLM family: part of a head has a position", "stablelm"),
        "starcoder2": Family(
            "StarCoder2 family: biases, layer norm", "starcoder2", {"sliding_window": None}
        ),
        "cohere": Family(
            "Command R family: attention and MLP side by side",
            "cohere",
            {"tie_word_embeddings": True, "logit_scale": 0.8},
        ),
        "cohere2": Family(
            "Command R7B family: every other layer with a sliding window of 32 tokens",
            "cohere2",
            {"tie_word_embeddings": True, "logit_scale": 0.8, **SLIDING},
        ),
        "gemma2": Family(
            "Gemma 2: attention scores and logits have soft caps, every other layer a window",
            "gemma2",
            {
                **SLIDING,
                "attn_logit_softcapping": 5.0,
                "query_pre_attn_scalar": 32,
                "hidden_act": "gelu_pytorch_tanh",  # SGLang reads this older name too
                "tie_word_embeddings": True,
            },
        ),
        "gemma3": Family(
            "Gemma 3 (text): every other layer with a window and a rotary base of its own",
            "gemma3_text",
            {**SLIDING, "query_pre_attn_scalar": 32, "tie_word_embeddings": True},
        ),
    }
)

"""What a preset is, and the shape that small models have in common."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

VOCABULARY = 8_000
"""Tokens of every tokenizer, and of every model but those of a true shape."""

CONTEXT_LENGTH = 32_768

Weights = Literal["spread", "default", "trained"]
"""How weights come about.

`spread`: random, so large that labels differ by several nats; mistakes show.
`default`: random, as the architecture initialises itself. For bfloat16, whose rounding shows
in the log-probabilities in proportion to their spread, most of all in a deep model.
`trained`: trained on the synthetic catalogue.
"""


@dataclass(frozen=True, slots=True)
class Preset:
    """One model.

    Attributes:
        model_type: the Hugging Face architecture name.
        shape: arguments of that architecture's configuration class.
        dtype: of the saved weights.
        weights: how they come about.
        classes: numbers that a head for sequence classification gives; 0 for a language model.
        reward: whether that head is the one of Qwen's reward models: two layers, one number.
        bare: whether there is no head, as in some embedding models.
        images: whether it reads images, too.
        reranker: whether its tokenizer is that of a decoder reranker, see `train_tokenizer`.
        encoder: whether it is an encoder, without a language model, with a tokenizer for it.
    """

    model_type: str
    shape: Mapping[str, Any]
    dtype: str = "float32"
    weights: Weights = "spread"
    classes: int = 0
    reward: bool = False
    bare: bool = False
    images: bool = False
    reranker: bool = False
    encoder: bool = False


def shape_of(
    *,
    hidden: int = 128,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    intermediate: int = 256,
    **more: Any,
) -> Mapping[str, Any]:
    """Configuration arguments; `head_dim` is `hidden / heads` unless given in `more`."""
    arguments = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "intermediate_size": intermediate,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT_LENGTH,
        "tie_word_embeddings": False,
    }
    return arguments | more


def family(model_type: str, **more: Any) -> Preset:
    """A language model in the common shape.

    Args:
        more: see `shape_of`.
    """
    return Preset(model_type, shape_of(**more))


def multimodal(model_type: str, text: Mapping[str, Any], rest: Mapping[str, Any]) -> Preset:
    """A model that reads images, with the text part in the common shape.

    Args:
        text: configuration arguments of the text part, see `shape_of`.
        rest: all other configuration arguments.
    """
    shape = {"tie_word_embeddings": False, "text_config": shape_of(**text), **rest}
    if model_type == "qwen3_omni_moe":  # without the part that speaks
        shape = {"thinker_config": shape, "enable_audio_output": False}
    return Preset(model_type, shape, images=True)

"""The models that can be made, as data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sglang_prefill_ext.modelmaker.families import DENSE, WINDOW, Multimodal
from sglang_prefill_ext.modelmaker.mixtures import MIXTURES
from sglang_prefill_ext.modelmaker.multimodal import MULTIMODAL

VOCABULARY = 8_000
"""Tokens of every tokenizer, and of every model but `TRUE_SHAPES`, which keep their true size."""

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


def _shape(
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


def _multimodal(kind: Multimodal, *, reranker: bool = False) -> Preset:
    text = {"text_config": _shape(**kind.text)}
    shape = {"tie_word_embeddings": False, **text, **kind.rest}
    if kind.model_type == "qwen3_omni_moe":  # without the part that speaks
        shape = {"thinker_config": shape, "enable_audio_output": False}
    return Preset(kind.model_type, shape, images=True, reranker=reranker)


_BERT = _shape(
    kv_heads=4, max_position_embeddings=512, position_embedding_type="absolute", type_vocab_size=2
)
_XLM_ROBERTA = {**_BERT, "max_position_embeddings": 514, "type_vocab_size": 1}


ENCODERS: Mapping[str, Preset] = {
    "bert": Preset("bert", _BERT, encoder=True),
    "bert-reranker": Preset("bert", _BERT, classes=1, encoder=True),
    "bert-classifier": Preset("bert", _BERT, classes=3, encoder=True),
    "xlm-roberta": Preset("xlm-roberta", _XLM_ROBERTA, encoder=True),
    "xlm-roberta-reranker": Preset("xlm-roberta", _XLM_ROBERTA, classes=1, encoder=True),
}

_QWEN3: Mapping[str, Any] = {
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
}


def _true_shape(model_type: str, **shape: Any) -> Preset:
    return Preset(model_type, _shape(**_QWEN3, **shape), dtype="bfloat16", weights="default")


TRUE_SHAPES: Mapping[str, Preset] = {
    "qwen3-0.6b": _true_shape(
        "qwen3",
        hidden=1024,
        layers=28,
        heads=16,
        kv_heads=8,
        intermediate=3072,
        tie_word_embeddings=True,
    ),
    "qwen3-4b": _true_shape(
        "qwen3",
        hidden=2560,
        layers=36,
        heads=32,
        kv_heads=8,
        intermediate=9728,
        tie_word_embeddings=True,
    ),
    # Twelve of its 48 layers.
    "qwen3-30b-a3b-quarter": _true_shape(
        "qwen3_moe",
        hidden=2048,
        layers=12,
        heads=32,
        kv_heads=4,
        intermediate=6144,
        moe_intermediate_size=768,
        num_experts=128,
        num_experts_per_tok=8,
        norm_topk_prob=True,
    ),
}

FAMILIES = {**DENSE, **MIXTURES}

PRESETS: Mapping[str, Preset] = {
    # The least work per token, which shows the work of the host.
    "micro": Preset("qwen3", _shape(hidden=64, layers=1, intermediate=128)),
    # The smallest model whose layers cost something.
    "tiny": Preset("qwen3", _shape(hidden=256, layers=4, heads=8, kv_heads=4, intermediate=704)),
    **{name: Preset(each.model_type, _shape(**each.more)) for name, each in FAMILIES.items()},
    **{name: _multimodal(each) for name, each in MULTIMODAL.items()},
    "classifier": Preset("qwen3", _shape(), classes=3),
    "classifier-qwen2": Preset("qwen2", _shape(), classes=3),
    "classifier-llama": Preset("llama", _shape(), classes=3),
    "classifier-gemma2": Preset("gemma2", _shape(**FAMILIES["gemma2"].more), classes=3),
    "reward-qwen2": Preset("qwen2", _shape(), classes=1, reward=True),
    "reward-qwen3": Preset("qwen3", _shape(), classes=1, reward=True),
    "bare-mistral": Preset("mistral", _shape(sliding_window=None), bare=True),
    "bare-qwen3": Preset("qwen3", _shape(), bare=True),
    "bare-smollm3": Preset("smollm3", _shape(**FAMILIES["smollm3"].more), bare=True),
    "reranker": Preset("qwen3", _shape(), reranker=True),
    "reranker-qwen3-vl": _multimodal(MULTIMODAL["qwen3-vl"], reranker=True),
    **ENCODERS,
    "mistral-sliding": Preset("mistral", _shape(sliding_window=WINDOW)),
    **TRUE_SHAPES,
    "ranker": Preset(
        "qwen3",
        _shape(layers=3, heads=8, kv_heads=4, intermediate=128),
        weights="trained",
    ),
}

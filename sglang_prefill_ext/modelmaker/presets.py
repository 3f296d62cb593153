"""The models that can be made, as data."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sglang_prefill_ext.modelmaker.families import DENSE, SLIDING, WINDOW
from sglang_prefill_ext.modelmaker.mixtures import MIXTURES
from sglang_prefill_ext.modelmaker.multimodal import MULTIMODAL
from sglang_prefill_ext.modelmaker.preset import Preset, family, shape_of

_BERT = shape_of(
    kv_heads=4, max_position_embeddings=512, position_embedding_type="absolute", type_vocab_size=2
)
_XLM_ROBERTA = {**_BERT, "max_position_embeddings": 514, "type_vocab_size": 1}


ENCODERS: Mapping[str, Preset] = {
    "bert": Preset("bert", _BERT, encoder=True),
    "bert-reranker": Preset("bert", _BERT, classes=1, encoder=True),
    "bert-classifier": Preset("bert", _BERT, classes=3, encoder=True),
    "xlm-roberta": Preset("xlm-roberta", _XLM_ROBERTA, encoder=True),
    "xlm-roberta-reranker": Preset("xlm-roberta", _XLM_ROBERTA, classes=1, encoder=True),
    # Transformers halves the window when it reads the configuration.
    "embedding-gemma": Preset(
        "gemma3_text",
        {
            **shape_of(query_pre_attn_scalar=32, use_bidirectional_attention=True),
            **SLIDING,
            "sliding_window": 1024,
        },
        bare=True,
    ),
}

_QWEN3: Mapping[str, Any] = {
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
}


def _true_shape(model_type: str, **shape: Any) -> Preset:
    return Preset(model_type, shape_of(**_QWEN3, **shape), dtype="bfloat16", weights="default")


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
    "micro": family("qwen3", hidden=64, layers=1, intermediate=128),
    # The smallest model whose layers cost something.
    "tiny": family("qwen3", hidden=256, layers=4, heads=8, kv_heads=4, intermediate=704),
    **FAMILIES,
    **MULTIMODAL,
    "classifier": replace(FAMILIES["qwen3"], classes=3),
    "classifier-qwen2": replace(FAMILIES["qwen2"], classes=3),
    "classifier-llama": replace(FAMILIES["llama"], classes=3),
    "classifier-gemma2": replace(FAMILIES["gemma2"], classes=3),
    "reward-qwen2": replace(FAMILIES["qwen2"], classes=1, reward=True),
    "reward-qwen3": replace(FAMILIES["qwen3"], classes=1, reward=True),
    "bare-mistral": replace(FAMILIES["mistral"], bare=True),
    "bare-qwen3": replace(FAMILIES["qwen3"], bare=True),
    "bare-smollm3": replace(FAMILIES["smollm3"], bare=True),
    "reranker": replace(FAMILIES["qwen3"], reranker=True),
    "reranker-qwen3-vl": replace(MULTIMODAL["qwen3-vl"], reranker=True),
    **ENCODERS,
    "mistral-sliding": family("mistral", sliding_window=WINDOW),
    **TRUE_SHAPES,
    "ranker": replace(
        family("qwen3", layers=3, heads=8, kv_heads=4, intermediate=128), weights="trained"
    ),
}

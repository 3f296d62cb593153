"""Models that read images too, of which only the part that reads text is of interest: pure data."""

from collections.abc import Mapping

from sglang_prefill_ext.modelmaker.families import (
    CONVOLUTION,
    DELTA,
    NARROWER_TWO_OF_FOUR,
    ONE_LAYER,
    QWEN,
    QWEN3_ROTARY,
    QWEN3_VISION,
    QWEN_VISION,
    ROTARY,
    SLIDING,
    VISION,
)
from sglang_prefill_ext.modelmaker.latent import DENSE_THEN_SHARED
from sglang_prefill_ext.modelmaker.multimodal_mixtures import MULTIMODAL_MIXTURES
from sglang_prefill_ext.modelmaker.preset import Preset, multimodal

_GLM_ROTARY = ROTARY | {"mrope_section": [2, 3, 3], "partial_rotary_factor": 0.5}
_GLM = {
    "image_start_token_id": 3,
    "image_end_token_id": 4,
    "image_token_id": 5,
    "video_token_id": 6,
    "vision_config": QWEN_VISION | {"depth": 1, "image_size": 28, "patch_size": 14},
}
_QWEN3_5_TEXT = {
    **DELTA,
    "rope_parameters": QWEN3_ROTARY | {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.25},
}
_QWEN3_5 = {**QWEN, "vision_config": QWEN_VISION | {"depth": 2, "num_position_embeddings": 16}}
_GEMMA4_TEXT = {
    **SLIDING,
    "num_global_key_value_heads": 4,
    "global_head_dim": 64,
    "attention_k_eq_v": True,  # of the layer without a window
    "final_logit_softcapping": 10.0,
    "hidden_size_per_layer_input": 0,
    "tie_word_embeddings": True,
}
_GEMMA4 = {
    "boi_token_id": 3,
    "eoi_token_id": 4,
    "image_token_id": 5,
    "video_token_id": 6,
    "boa_token_id": 7,
    "eoa_token_index": 8,
    "audio_token_id": 9,
    "vision_config": ONE_LAYER
    | {"num_key_value_heads": 2, "head_dim": 16, "patch_size": 14, "position_embedding_size": 16},
    "tie_word_embeddings": True,
}

MULTIMODAL: Mapping[str, Preset] = {
    "qwen2-vl": multimodal(
        "qwen2_vl",
        {"rope_parameters": ROTARY | {"mrope_section": [4, 6, 6]}},
        {
            **QWEN,
            "vision_config": {
                "depth": 1,
                "embed_dim": 32,
                "hidden_size": 128,
                "num_heads": 2,
                "in_chans": 3,  # read by SGLang only
            },
        },
    ),
    "qwen2.5-vl": multimodal(
        "qwen2_5_vl",
        {"rope_parameters": ROTARY | {"mrope_section": [4, 6, 6]}},
        {**QWEN, "vision_config": QWEN_VISION | {"depth": 1}},
    ),
    "qwen3-vl": multimodal(
        "qwen3_vl", {"rope_parameters": QWEN3_ROTARY}, {**QWEN, "vision_config": QWEN3_VISION}
    ),
    "qwen3-vl-moe": multimodal(
        "qwen3_vl_moe",
        {"rope_parameters": QWEN3_ROTARY, **NARROWER_TWO_OF_FOUR},
        {**QWEN, "vision_config": QWEN3_VISION},
    ),
    "qwen3.5-vl": multimodal("qwen3_5", _QWEN3_5_TEXT, _QWEN3_5),
    "qwen3.5-vl-moe": multimodal(
        "qwen3_5_moe",
        {**_QWEN3_5_TEXT, **NARROWER_TWO_OF_FOUR, "shared_expert_intermediate_size": 192},
        _QWEN3_5,
    ),
    "glm4v": multimodal("glm4v", {"rope_parameters": _GLM_ROTARY}, _GLM),
    "glm4v-moe": multimodal(
        "glm4v_moe", {"rope_parameters": _GLM_ROTARY, **DENSE_THEN_SHARED}, _GLM
    ),
    "gemma3-vl": multimodal(
        "gemma3",
        {**SLIDING, "query_pre_attn_scalar": 32, "tie_word_embeddings": True},
        {
            "vision_config": VISION | {"vision_use_head": False},
            "image_token_index": 5,
            "mm_tokens_per_image": 4,
            "tie_word_embeddings": True,
        },
    ),
    "gemma4": multimodal("gemma4", _GEMMA4_TEXT, _GEMMA4),
    # Experts and an MLP side by side.
    "gemma4-moe": multimodal(
        "gemma4",
        {
            **_GEMMA4_TEXT,
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 96,
        },
        _GEMMA4,
    ),
    # An embedding of each token for each layer; the last two layers have K/V of the first two.
    "gemma4-e": multimodal(
        "gemma4",
        {
            **_GEMMA4_TEXT,
            "layer_types": 2 * ["sliding_attention", "full_attention"],
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "attention_k_eq_v": False,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": 8_000,
        },
        _GEMMA4,
    ),
    "lfm2-vl": multimodal(
        "lfm2_vl",
        {"model_type": "lfm2", **CONVOLUTION, "block_auto_adjust_ff_dim": False},
        {
            "image_token_id": 5,
            "projector_hidden_size": 64,
            "vision_config": ONE_LAYER
            | {"model_type": "siglip2_vision_model", "num_patches": 16, "patch_size": 14},
        },
    ),
    "mistral3": multimodal(
        "mistral3",
        {"model_type": "mistral", "sliding_window": None},
        {"vision_config": VISION | {"model_type": "pixtral"}, "image_token_index": 5},
    ),
    **MULTIMODAL_MIXTURES,
}

"""Models that read images too, of which only the part that reads text is of interest: pure data."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from sglang_prefill_ext.modelmaker.families import CONVOLUTION, DELTA, SLIDING
from sglang_prefill_ext.modelmaker.mixtures import DEEPSEEK_YARN, DENSE_THEN_SHARED, LATENT

_ROTARY = {"rope_type": "default", "rope_theta": 10_000.0}
_QWEN = {  # see `tokenizer.IMAGE_TOKENS`
    "vision_start_token_id": 3,
    "vision_end_token_id": 4,
    "image_token_id": 5,
    "video_token_id": 6,
}
_QWEN3_ROTARY = _ROTARY | {"mrope_section": [8, 4, 4], "mrope_interleaved": True}
_GLM_ROTARY = _ROTARY | {"mrope_section": [2, 3, 3], "partial_rotary_factor": 0.5}
_GLM = {
    "image_start_token_id": 3,
    "image_end_token_id": 4,
    "image_token_id": 5,
    "video_token_id": 6,
    "vision_config": {
        "depth": 1,
        "hidden_size": 32,
        "num_heads": 2,
        "intermediate_size": 64,
        "out_hidden_size": 128,
        "image_size": 28,
        "patch_size": 14,
    },
}
_QWEN_VISION = {"hidden_size": 32, "num_heads": 2, "intermediate_size": 64, "out_hidden_size": 128}
_QWEN3_VISION = _QWEN_VISION | {
    "depth": 2,
    "deepstack_visual_indexes": [0, 1],  # one for each layer of the text part
    "num_position_embeddings": 16,
}
_QWEN3_5_TEXT = {
    **DELTA,
    "rope_parameters": _QWEN3_ROTARY | {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.25},
}
_QWEN3_5 = {**_QWEN, "vision_config": _QWEN_VISION | {"depth": 2, "num_position_embeddings": 16}}
_VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 28,
    "patch_size": 14,
}
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
    "vision_config": {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 64,
        "patch_size": 14,
        "position_embedding_size": 16,
    },
    "tie_word_embeddings": True,
}


class Multimodal(NamedTuple):
    """One architecture, with the text part in the shape that all families have here.

    Attributes:
        model_type: the Hugging Face architecture name.
        text: configuration arguments of the text part beside the common shape.
        rest: all other configuration arguments.
    """

    model_type: str
    text: Mapping[str, Any]
    rest: Mapping[str, Any]


MULTIMODAL: Mapping[str, Multimodal] = {
    "qwen2-vl": Multimodal(
        "qwen2_vl",
        {"rope_parameters": _ROTARY | {"mrope_section": [4, 6, 6]}},
        {
            **_QWEN,
            "vision_config": {
                "depth": 1,
                "embed_dim": 32,
                "hidden_size": 128,
                "num_heads": 2,
                "in_chans": 3,  # read by SGLang only
            },
        },
    ),
    "qwen2.5-vl": Multimodal(
        "qwen2_5_vl",
        {"rope_parameters": _ROTARY | {"mrope_section": [4, 6, 6]}},
        {**_QWEN, "vision_config": _QWEN_VISION | {"depth": 1}},
    ),
    "qwen3-vl": Multimodal(
        "qwen3_vl",
        {"rope_parameters": _QWEN3_ROTARY},
        {**_QWEN, "vision_config": _QWEN3_VISION},
    ),
    "qwen3-vl-moe": Multimodal(
        "qwen3_vl_moe",
        {
            "rope_parameters": _QWEN3_ROTARY,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 96,  # not the hidden size, by which the layout is known
        },
        {**_QWEN, "vision_config": _QWEN3_VISION},
    ),
    "qwen3.5-vl": Multimodal("qwen3_5", _QWEN3_5_TEXT, _QWEN3_5),
    "qwen3.5-vl-moe": Multimodal(
        "qwen3_5_moe",
        {
            **_QWEN3_5_TEXT,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 96,
            "shared_expert_intermediate_size": 192,
        },
        _QWEN3_5,
    ),
    "glm4v": Multimodal("glm4v", {"rope_parameters": _GLM_ROTARY}, _GLM),
    "glm4v-moe": Multimodal(
        "glm4v_moe",
        {"rope_parameters": _GLM_ROTARY, **DENSE_THEN_SHARED},
        _GLM,
    ),
    "gemma3-vl": Multimodal(
        "gemma3",
        {**SLIDING, "query_pre_attn_scalar": 32, "tie_word_embeddings": True},
        {
            "vision_config": _VISION | {"vision_use_head": False},
            "image_token_index": 5,
            "mm_tokens_per_image": 4,
            "tie_word_embeddings": True,
        },
    ),
    "gemma4": Multimodal("gemma4", _GEMMA4_TEXT, _GEMMA4),
    # Experts and an MLP side by side.
    "gemma4-moe": Multimodal(
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
    "gemma4-e": Multimodal(
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
    # Three layers of attention within chunks, then one without positions, which scale its queries.
    # In every other layer, experts whose inputs are weighted.
    "llama4": Multimodal(
        "llama4",
        {
            "num_hidden_layers": 4,
            "intermediate_size_mlp": 256,
            "intermediate_size": 96,
            "num_local_experts": 4,
            "interleave_moe_layer_step": 2,
            "attention_chunk_size": 48,
            "floor_scale": 16,
            "attn_scale": 0.5,
        },
        {
            "boi_token_index": 3,
            "eoi_token_index": 4,
            "image_token_index": 5,
            "vision_config": _VISION
            | {
                "intermediate_size": 128,
                "vision_output_dim": 32,
                "projector_input_dim": 32,
                "projector_output_dim": 32,
                "rope_parameters": _ROTARY,
            },
        },
    ),
    "kimi-k25": Multimodal(
        "kimi_k25",
        {
            "model_type": "deepseek_v3",
            **LATENT,
            **DEEPSEEK_YARN,
            "q_lora_rank": 48,
            "n_group": 1,
            "topk_group": 1,
            # The rest is read by SGLang only.
            "architectures": ["DeepseekV3ForCausalLM"],
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
        },
        {
            "vision_start_token_id": 3,
            "vision_end_token_id": 4,
            "image_token_id": 5,
            "video_token_id": 6,
            "projection_hidden_size": 32,
            "vision_config": {
                "hidden_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "intermediate_size": 64,
                "pos_emb_height": 2,
                "pos_emb_width": 2,
                # The rest is read by SGLang only.
                "init_pos_emb_height": 2,
                "init_pos_emb_width": 2,
                "text_hidden_size": 128,
                "vt_hidden_size": 32,
            },
        },
    ),
    # Gated attention; the layer with a window has more heads, experts and a shared one.
    "step3p7": Multimodal(
        "step3p7",
        {
            **SLIDING,
            "layer_types": ["full_attention", "sliding_attention"],
            "num_attention_groups": 2,
            "attention_other_setting": {"num_attention_heads": 4, "num_attention_groups": 2},
            "moe_layers_enum": "1",
            "moe_num_experts": 4,
            "moe_top_k": 2,
            "moe_intermediate_size": 96,
            "moe_router_scaling_factor": 1.5,
            "share_expert_dim": 192,
            "swiglu_limits": [0, 0],
            "swiglu_limits_shared": [0, 0.5],
            "rope_theta": [10_000.0, 5_000.0],
            "partial_rotary_factors": [0.5, 1.0],
            # The rest is read by SGLang only.
            "use_head_wise_attn_gate": True,
            "use_moe_router_bias": True,
            "need_fp32_gate": True,
        },
        {
            "image_token_id": 5,
            "vision_config": {
                "width": 32,
                "layers": 1,
                "heads": 2,
                "image_size": 28,
                "patch_size": 14,
                "mlp_ratio": 2.0,
            },
        },
    ),
    "qwen3-omni": Multimodal(
        "qwen3_omni_moe",
        {
            "rope_parameters": _QWEN3_ROTARY,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 96,
        },
        {
            **_QWEN,
            "audio_token_id": 7,
            "audio_start_token_id": 8,
            "audio_end_token_id": 9,
            "vision_config": _QWEN3_VISION | {"deepstack_visual_indexes": [0]},
            "audio_config": {
                "encoder_layers": 1,
                "encoder_attention_heads": 2,
                "encoder_ffn_dim": 64,
                "d_model": 32,
                "num_mel_bins": 16,
                "output_dim": 128,
                "downsample_hidden_size": 16,
            },
        },
    ),
    "cohere2-vision": Multimodal(
        "cohere2_vision",
        {
            "model_type": "cohere2_moe",
            **SLIDING,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "num_shared_experts": 1,
            "mlp_layer_types": ["sparse", "sparse"],
            "expert_selection_fn": "sigmoid",
            "tie_word_embeddings": True,
            "logit_scale": 1.0,  # Hugging Face leaves it out
        },
        {
            "vision_config": _VISION | {"model_type": "siglip_vision_model"},
            "image_token_id": 5,
            "downsample_factor": 1,
            "alignment_intermediate_size": 64,
            "tie_word_embeddings": True,
        },
    ),
    "lfm2-vl": Multimodal(
        "lfm2_vl",
        {"model_type": "lfm2", **CONVOLUTION, "block_auto_adjust_ff_dim": False},
        {
            "image_token_id": 5,
            "projector_hidden_size": 64,
            "vision_config": {
                "model_type": "siglip2_vision_model",
                "hidden_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "intermediate_size": 64,
                "num_patches": 16,
                "patch_size": 14,
            },
        },
    ),
    "mistral3": Multimodal(
        "mistral3",
        {"model_type": "mistral", "sliding_window": None},
        {"vision_config": _VISION | {"model_type": "pixtral"}, "image_token_index": 5},
    ),
}

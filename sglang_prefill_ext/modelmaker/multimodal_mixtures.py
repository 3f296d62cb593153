"""Mixtures of experts that read images or hear sounds too: pure data."""

from collections.abc import Mapping

from sglang_prefill_ext.modelmaker.families import (
    NARROWER_TWO_OF_FOUR,
    NEMOTRON,
    ONE_LAYER,
    QWEN,
    QWEN3_ROTARY,
    QWEN3_VISION,
    ROTARY,
    SLIDING,
    VISION,
)
from sglang_prefill_ext.modelmaker.latent import DEEPSEEK_V3
from sglang_prefill_ext.modelmaker.mixtures import COHERE_MIXTURE
from sglang_prefill_ext.modelmaker.preset import Preset, multimodal

MULTIMODAL_MIXTURES: Mapping[str, Preset] = {
    # Three layers of attention within chunks, then one without positions, which scale its queries.
    # In every other layer, experts whose inputs are weighted.
    "llama4": multimodal(
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
            "vision_config": VISION
            | {
                "intermediate_size": 128,
                "vision_output_dim": 32,
                "projector_input_dim": 32,
                "projector_output_dim": 32,
                "rope_parameters": ROTARY,
            },
        },
    ),
    "kimi-k25": multimodal(
        "kimi_k25",
        {
            "model_type": "deepseek_v3",
            **DEEPSEEK_V3 | {"n_group": 1},
            "architectures": ["DeepseekV3ForCausalLM"],  # read by SGLang only
        },
        {
            **QWEN,
            "projection_hidden_size": 32,
            "vision_config": ONE_LAYER
            | {
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
    "step3p7": multimodal(
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
    "qwen3-omni": multimodal(
        "qwen3_omni_moe",
        {"rope_parameters": QWEN3_ROTARY, **NARROWER_TWO_OF_FOUR},
        {
            **QWEN,
            "audio_token_id": 7,
            "audio_start_token_id": 8,
            "audio_end_token_id": 9,
            "vision_config": QWEN3_VISION | {"deepstack_visual_indexes": [0]},
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
    "nemotron-omni": multimodal(
        "nemotron_h_omni",
        {"model_type": "nemotron_h", **NEMOTRON},
        {
            "image_token_id": 5,
            "video_token_id": 6,
            "audio_token_id": 7,
            "projector_hidden_size": 64,
            "vision_hidden_size": 384,
            "vision_config": {
                "hidden_size": 384,
                "num_hidden_layers": 12,
                "num_attention_heads": 6,
                "video_temporal_patch_size": 2,
                # Read by SGLang only, which knows no smaller one.
                "args": {"model": "vit_small_patch16_224", "register_multiple": 10},
            },
            "audio_config": ONE_LAYER
            | {
                "subsampling_conv_channels": 16,
                "num_mel_bins": 16,
                "projection_hidden_size": 32,
                "projection_bias": False,
                "sampling_rate": 16_000,  # read by SGLang only
            },
        },
    ),
    "cohere2-vision": multimodal(
        "cohere2_vision",
        {
            "model_type": "cohere2_moe",
            **COHERE_MIXTURE,
            "logit_scale": 1.0,  # Hugging Face leaves it out
        },
        {
            "vision_config": VISION | {"model_type": "siglip_vision_model"},
            "image_token_id": 5,
            "downsample_factor": 1,
            "alignment_intermediate_size": 64,
            "tie_word_embeddings": True,
        },
    ),
}

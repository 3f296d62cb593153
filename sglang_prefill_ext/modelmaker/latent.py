"""Mixtures of experts with latent attention: pure data.

Keys and values of a token are made of a few numbers that are kept.
"""

from collections.abc import Mapping

from sglang_prefill_ext.modelmaker.families import YARN
from sglang_prefill_ext.modelmaker.preset import Preset, family

DENSE_THEN_SHARED = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 128,
    "first_k_dense_replace": 1,
}
"""A dense layer, then layers with experts and a shared one."""
LATENT = {
    "num_key_value_heads": 4,
    "head_dim": 16,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 24,
    **DENSE_THEN_SHARED,
    "moe_layer_freq": 1,  # read by SGLang only
}
DEEPSEEK_YARN = {
    "rope_parameters": YARN | {"rope_theta": 10_000.0, "mscale": 0.707, "mscale_all_dim": 0.707}
}
DEEPSEEK_V3 = {
    **LATENT,
    **DEEPSEEK_YARN,
    "q_lora_rank": 48,
    "n_group": 2,
    "topk_group": 1,
    # The rest is read by SGLang only.
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
}

LATENT_MIXTURES: Mapping[str, Preset] = {
    "deepseek-v2": family(
        "deepseek_v2",
        **LATENT | {"n_shared_experts": 2},
        **DEEPSEEK_YARN,
        q_lora_rank=None,
        n_group=1,
        topk_group=1,
        scoring_func="softmax",  # read by SGLang only
    ),
    "deepseek-v3": family("deepseek_v3", **DEEPSEEK_V3),
    "glm4-moe-lite": family("glm4_moe_lite", **LATENT, q_lora_rank=48, rms_norm_eps=1e-6),
    # Two attentions and two MLPs in a layer, beside its experts, of which some do nothing.
    "longcat": family(
        "longcat_flash",
        **{name: LATENT[name] for name in LATENT if name not in DENSE_THEN_SHARED}
        | {"kv_lora_rank": 128},
        num_layers=2,
        q_lora_rank=128,
        ffn_hidden_size=256,
        n_routed_experts=4,
        zero_expert_num=2,
        moe_topk=3,
        expert_ffn_hidden_size=128,
        routed_scaling_factor=1.0,  # SGLang 0.5.23 leaves it out for experts that do nothing
    ),
    # Keys of the first layer decay channel by channel; latent attention of the second has no
    # positions.
    "kimi-linear": family(
        "kimi_linear",
        **LATENT,
        layer_types=["linear_attention", "full_attention"],
        mlp_layer_types=["dense", "sparse"],
        linear_head_dim=32,
        linear_num_heads=2,
        num_experts=4,
        routed_scaling_factor=1.0,  # SGLang 0.5.23 leaves it out on a CPU
        # The rest is read by SGLang only.
        linear_attn_config={
            "kda_layers": [1],
            "full_attn_layers": [2],
            "head_dim": 32,
            "num_heads": 2,
            "short_conv_kernel_size": 4,
        },
        mla_use_nope=True,
    ),
}

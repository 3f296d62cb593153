"""Mixtures of experts, of which each token takes two of four: pure data."""

from collections.abc import Mapping

from sglang_prefill_ext.modelmaker.families import (
    CONVOLUTION,
    DELTA,
    MULTIPLIERS,
    NEMOTRON,
    SLIDING,
    STATE_SPACE,
    TWO_OF_FOUR,
    WINDOW,
    YARN,
)
from sglang_prefill_ext.modelmaker.latent import DENSE_THEN_SHARED, LATENT_MIXTURES
from sglang_prefill_ext.modelmaker.preset import Preset, family

_LOCAL_TWO_OF_FOUR = {"num_local_experts": 4, "num_experts_per_tok": 2}
_NARROW_TWO_OF_FOUR = TWO_OF_FOUR | {"moe_intermediate_size": 128}
_GATED_SHARED = {"shared_expert_intermediate_size": 192, "norm_topk_prob": True}
_DENSE_THEN_SPARSE = {"mlp_layer_types": ["dense", "sparse"]}
COHERE_MIXTURE = {
    **SLIDING,
    **TWO_OF_FOUR,
    "num_shared_experts": 1,
    "mlp_layer_types": ["sparse", "sparse"],
    "expert_selection_fn": "sigmoid",
    "tie_word_embeddings": True,
}

MIXTURES: Mapping[str, Preset] = {
    "qwen3-moe": family("qwen3_moe", **_NARROW_TWO_OF_FOUR, norm_topk_prob=True),
    # With a gated shared expert.
    "qwen2-moe": family("qwen2_moe", **_NARROW_TWO_OF_FOUR, **_GATED_SHARED),
    # With a gated shared expert.
    "qwen3-next": family("qwen3_next", **_NARROW_TWO_OF_FOUR, **DELTA, **_GATED_SHARED),
    "qwen3.5-moe": family("qwen3_5_moe_text", **_NARROW_TWO_OF_FOUR, **DELTA, **_GATED_SHARED),
    "granite4-moe": family(
        "granitemoehybrid",
        **_LOCAL_TWO_OF_FOUR,
        **STATE_SPACE,
        **MULTIPLIERS,
        shared_intermediate_size=192,
    ),
    "nemotron-h": family("nemotron_h", **NEMOTRON),
    # The first layer has a short convolution and no experts.
    "lfm2-moe": family("lfm2_moe", **_NARROW_TWO_OF_FOUR, **CONVOLUTION, num_dense_layers=1),
    # Queries and keys have a norm over all heads. Of grouped keys SGLang 0.5.23 cannot load it.
    "olmoe": family("olmoe", **TWO_OF_FOUR, num_key_value_heads=4),
    # A dense layer, then experts and a shared one.
    "ernie4-moe": family(
        "ernie4_5_moe",
        moe_num_experts=4,
        moe_k=2,
        moe_num_shared_experts=1,
        moe_intermediate_size=128,
        moe_layer_start_index=1,
    ),
    "mixtral": family("mixtral", **_LOCAL_TWO_OF_FOUR, sliding_window=None),
    "granite-moe": family("granitemoe", **_LOCAL_TWO_OF_FOUR, **MULTIPLIERS),
    "granite-moe-swa": family("granitemoe_swa", **_LOCAL_TWO_OF_FOUR, **MULTIPLIERS, **SLIDING),
    "granite-moe-shared": family(
        "granitemoeshared", **_LOCAL_TWO_OF_FOUR, **MULTIPLIERS, shared_intermediate_size=192
    ),
    # A dense layer, then experts and a shared one.
    "glm4-moe": family("glm4_moe", **DENSE_THEN_SHARED),
    # Half of a head has a position.
    "minimax-m2": family(
        "minimax_m2",
        **_LOCAL_TWO_OF_FOUR,
        intermediate_size=128,
        rotary_dim=16,
        # The rest is read by SGLang only.
        use_qk_norm=True,
        use_routing_bias=True,
        scoring_func="sigmoid",
    ),
    # With a shared expert.
    "hy-v3": family(
        "hy_v3",
        **_NARROW_TWO_OF_FOUR,
        **_DENSE_THEN_SPARSE,
        router_scaling_factor=1.5,
        # The rest is read by SGLang only.
        first_k_dense_replace=1,
        qk_norm=True,
        route_norm=True,
    ),
    # The weights of a token's experts do not add up to one.
    "phimoe": family("phimoe", **_LOCAL_TWO_OF_FOUR, sliding_window=None),
    # SGLang has no class of its own for it, and runs that of Transformers.
    "dots1": family("dots1", **DENSE_THEN_SHARED, norm_topk_prob=True, sliding_window=None),
    # With attention sinks.
    "gpt-oss": family(
        "gpt_oss",
        **SLIDING,
        **_LOCAL_TWO_OF_FOUR,
        rope_parameters=YARN | {"rope_theta": 150_000.0, "truncate": False},
    ),
    # The mean of a token's experts and the shared one is taken.
    "cohere2-moe": family("cohere2_moe", **COHERE_MIXTURE, logit_scale=0.8),
    "mellum": family("mellum", **_NARROW_TWO_OF_FOUR, **SLIDING, **_DENSE_THEN_SPARSE),
    # Layers of gated attention with different numbers of heads, and a shared expert.
    "laguna": family(
        "laguna",
        num_attention_heads_per_layer=[8, 4],
        **_NARROW_TWO_OF_FOUR,
        **SLIDING,
        **_DENSE_THEN_SPARSE,
        shared_expert_intermediate_size=128,
    ),
    # With a shared expert; the second layer has no positions.
    "exaone-moe": family(
        "exaone_moe",
        **_NARROW_TWO_OF_FOUR,
        **SLIDING,
        **_DENSE_THEN_SPARSE,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        routed_scaling_factor=1.5,
        # SGLang reads these two, and with a pattern wants attention of a GPU.
        is_moe_layer=[False, True],
        sliding_window_pattern=None,
    ),
    # Values are narrower than keys; layers with a window have sinks and more heads of keys.
    "mimo-v2": family(
        "mimo_v2_flash",
        **{name: DENSE_THEN_SHARED[name] for name in ("n_routed_experts", "num_experts_per_tok")},
        **_DENSE_THEN_SPARSE,
        layer_types=["full_attention", "sliding_attention"],
        sliding_window=WINDOW,
        moe_intermediate_size=128,
        v_head_dim=24,
        # The rest is read by SGLang only.
        hybrid_layer_pattern=[0, 1],
        moe_layer_freq=[0, 1],
        swa_num_attention_heads=4,
        swa_num_key_value_heads=4,
        swa_head_dim=32,
        swa_v_head_dim=24,
        sliding_window_size=WINDOW,
        add_swa_attention_sink_bias=True,
        layernorm_epsilon=1e-5,
        topk_method="noaux_tc",
        scoring_func="sigmoid",
        rope_theta=5_000_000.0,
        swa_rope_theta=10_000.0,
        partial_rotary_factor=0.334,
    ),
    # AFMoE is Trinity. Gated attention; the second layer has no positions.
    "afmoe": family(
        "afmoe",
        **_NARROW_TWO_OF_FOUR,
        **SLIDING,
        num_dense_layers=1,
        num_shared_experts=2,
        route_scale=1.5,
        mup_enabled=True,
        score_func="sigmoid",  # read by SGLang only
    ),
    **LATENT_MIXTURES,
}

"""Mixtures of experts that differ from each other only in their architecture: pure data."""

from collections.abc import Mapping
from types import MappingProxyType

from sglang_prefill_ext.modelmaker.families import MULTIPLIERS, SLIDING, Family

_TWO_OF_FOUR = {"num_local_experts": 4, "num_experts_per_tok": 2}
_NARROW_TWO_OF_FOUR = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
_DENSE_THEN_SPARSE = {"mlp_layer_types": ["dense", "sparse"]}

MIXTURES: Mapping[str, Family] = MappingProxyType(
    {
        "qwen3-moe": Family(
            "Qwen3 mixture of experts, two of four experts per token",
            "qwen3_moe",
            {**_NARROW_TWO_OF_FOUR, "norm_topk_prob": True},
        ),
        "qwen2-moe": Family(
            "Qwen2 mixture of experts, two of four experts and a gated shared one per token",
            "qwen2_moe",
            {
                **_NARROW_TWO_OF_FOUR,
                "shared_expert_intermediate_size": 192,
                "norm_topk_prob": True,
            },
        ),
        "olmoe": Family(
            "OLMoE, two of four experts per token; queries and keys have a norm over all heads",
            "olmoe",
            # Of grouped keys SGLang 0.5.23 cannot load the norm.
            {"num_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 4},
        ),
        "ernie4-moe": Family(
            "Ernie 4.5: a dense layer, then two of four experts and a shared one per token",
            "ernie4_5_moe",
            {
                "moe_num_experts": 4,
                "moe_k": 2,
                "moe_num_shared_experts": 1,
                "moe_intermediate_size": 128,
                "moe_layer_start_index": 1,
            },
        ),
        "mixtral": Family(
            "Mixtral, two of four experts per token",
            "mixtral",
            {**_TWO_OF_FOUR, "sliding_window": None},
        ),
        "granite-moe": Family(
            "Granite mixture of experts, two of four experts per token",
            "granitemoe",
            {**_TWO_OF_FOUR, **MULTIPLIERS},
        ),
        "granite-moe-shared": Family(
            "Granite mixture of experts, two of four experts and a shared one per token",
            "granitemoeshared",
            {**_TWO_OF_FOUR, **MULTIPLIERS, "shared_intermediate_size": 192},
        ),
        "glm4-moe": Family(
            "GLM-4.5: a dense layer, then two of four experts and a shared one per token",
            "glm4_moe",
            {
                "n_routed_experts": 4,
                "num_experts_per_tok": 2,
                "n_shared_experts": 1,
                "moe_intermediate_size": 128,
                "first_k_dense_replace": 1,
            },
        ),
        "minimax-m2": Family(
            "MiniMax M2, two of four experts per token; half of a head has a position",
            "minimax_m2",
            {
                **_TWO_OF_FOUR,
                "intermediate_size": 128,
                "rotary_dim": 16,
                # The rest is read by SGLang only.
                "use_qk_norm": True,
                "use_routing_bias": True,
                "scoring_func": "sigmoid",
            },
        ),
        "hy-v3": Family(
            "Hunyuan 3: a dense layer, then two of four experts and a shared one per token",
            "hy_v3",
            {
                **_NARROW_TWO_OF_FOUR,
                **_DENSE_THEN_SPARSE,
                "router_scaling_factor": 1.5,
                # The rest is read by SGLang only.
                "first_k_dense_replace": 1,
                "qk_norm": True,
                "route_norm": True,
            },
        ),
        "phimoe": Family(
            "Phi MoE, two of four experts per token, whose weights do not add up to one",
            "phimoe",
            {**_TWO_OF_FOUR, "sliding_window": None},
        ),
        "gpt-oss": Family(
            "gpt-oss: attention sinks, every other layer with a window, two of four experts",
            "gpt_oss",
            {
                **SLIDING,
                **_TWO_OF_FOUR,
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 150_000.0,
                    "factor": 8.0,
                    "original_max_position_embeddings": 4096,
                    "beta_fast": 32.0,
                    "beta_slow": 1.0,
                    "truncate": False,
                },
            },
        ),
        "cohere2-moe": Family(
            "Cohere 2 mixture of experts: a window in every other layer, two of four experts and a "
            "shared one per token, whose mean is taken",
            "cohere2_moe",
            {
                **SLIDING,
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "num_shared_experts": 1,
                "mlp_layer_types": ["sparse", "sparse"],
                "expert_selection_fn": "sigmoid",
                "tie_word_embeddings": True,
                "logit_scale": 0.8,
            },
        ),
        "mellum": Family(
            "Mellum: a dense layer with a window, then two of four experts per token",
            "mellum",
            {**_NARROW_TWO_OF_FOUR, **SLIDING, **_DENSE_THEN_SPARSE},
        ),
        "laguna": Family(
            "Laguna: gated attention, a dense layer with a window, then two of four experts and a "
            "shared one per token",
            "laguna",
            {
                **_NARROW_TWO_OF_FOUR,
                **SLIDING,
                **_DENSE_THEN_SPARSE,
                "shared_expert_intermediate_size": 128,
            },
        ),
        "exaone-moe": Family(
            "EXAONE MoE: a dense layer with a window, then two of four experts and a shared one "
            "per token, without positions",
            "exaone_moe",
            {
                **_NARROW_TWO_OF_FOUR,
                **SLIDING,
                **_DENSE_THEN_SPARSE,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
                "routed_scaling_factor": 1.5,
                # SGLang reads these two, and with a pattern wants attention of a GPU.
                "is_moe_layer": [False, True],
                "sliding_window_pattern": None,
            },
        ),
        "afmoe": Family(
            "AFMoE (Trinity): gated attention with a window, then two of four experts and two "
            "shared ones per token, without positions",
            "afmoe",
            {
                **_NARROW_TWO_OF_FOUR,
                **SLIDING,
                "num_dense_layers": 1,
                "num_shared_experts": 2,
                "route_scale": 1.5,
                "mup_enabled": True,
                "score_func": "sigmoid",  # read by SGLang only
            },
        ),
    }
)

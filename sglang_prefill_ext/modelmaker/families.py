"""Parts that model families share, and the families without experts: pure data."""

from collections.abc import Mapping

from sglang_prefill_ext.modelmaker.preset import Preset, family

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

DELTA = {
    "layer_types": ["linear_attention", "full_attention"],
    "full_attention_interval": 2,  # read by SGLang only
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "rms_norm_eps": 1e-2,  # states that are nearly 0 would enlarge the rounding errors
}
"""A layer with a gated delta rule, then one with gated attention."""

STATE_SPACE = {
    "layer_types": ["linear_attention", "full_attention"],
    "mamba_n_heads": 4,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_d_head": 64,
    "mamba_chunk_size": 64,
}
"""A layer of Mamba-2, then one with attention."""

NEMOTRON = {
    "layers_block_type": ["linear_attention", "moe", "full_attention", "linear_attention", "mlp"],
    "num_hidden_layers": 5,
    "mamba_num_heads": 16,
    "mamba_head_dim": 16,
    "ssm_state_size": 16,
    "chunk_size": 64,
    "time_step_min": 1e-9,  # SGLang 0.5.23 has no least step
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "moe_shared_expert_intermediate_size": 192,
    "routed_scaling_factor": 1.5,
}
"""Mamba-2, experts, attention and an MLP in layers of their own; MLPs have no gate."""

CONVOLUTION = {"layer_types": ["conv", "full_attention"], "conv_bias": True}
"""A layer with a short convolution, then one with attention."""

TWO_OF_FOUR = {"num_experts": 4, "num_experts_per_tok": 2}
NARROWER_TWO_OF_FOUR = TWO_OF_FOUR | {"moe_intermediate_size": 96}
"""Of a width that is not the hidden size, by which the layout is known."""

ROTARY = {"rope_type": "default", "rope_theta": 10_000.0}
YARN = {
    "rope_type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
LONG_ROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + dim / 8 for dim in range(12)],
    "long_factor": [2.0 + dim for dim in range(12)],
}
QWEN = {  # see `tokenizer.IMAGE_TOKENS`
    "vision_start_token_id": 3,
    "vision_end_token_id": 4,
    "image_token_id": 5,
    "video_token_id": 6,
}
QWEN3_ROTARY = ROTARY | {"mrope_section": [8, 4, 4], "mrope_interleaved": True}
QWEN_VISION = {"hidden_size": 32, "num_heads": 2, "intermediate_size": 64, "out_hidden_size": 128}
QWEN3_VISION = QWEN_VISION | {
    "depth": 2,
    "deepstack_visual_indexes": [0, 1],  # one for each layer of the text part
    "num_position_embeddings": 16,
}
ONE_LAYER = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
"""Of a part that sees or hears."""
VISION = ONE_LAYER | {"image_size": 28, "patch_size": 14}


DENSE: Mapping[str, Preset] = {
    "qwen2": family("qwen2"),
    "qwen3": family("qwen3"),
    "llama": family("llama"),
    "mistral": family("mistral", sliding_window=None),
    "ministral3": family("ministral3"),
    "phi3": family("phi3"),
    # As Phi-4-mini.
    "phi3-long": family(
        "phi3",
        rope_parameters=LONG_ROPE,
        original_max_position_embeddings=1024,
        partial_rotary_factor=0.75,
    ),
    "arcee": family("arcee"),  # an MLP without a gate
    "glm4": family("glm4"),  # norms after attention and MLP too
    "ernie4": family("ernie4_5"),
    "granite": family("granite", **MULTIPLIERS),
    "granite-swa": family("granite_swa", **MULTIPLIERS, **SLIDING),  # attention sinks
    "olmo": family("olmo", num_key_value_heads=4),  # norms without weights
    "olmo2": family("olmo2"),  # norms after attention and MLP only
    "stablelm": family("stablelm"),  # part of a head has a position
    "starcoder2": family("starcoder2", sliding_window=None),  # biases, layer norm
    # Attention and MLP side by side.
    "cohere": family("cohere", tie_word_embeddings=True, logit_scale=0.8),
    "cohere2": family("cohere2", tie_word_embeddings=True, logit_scale=0.8, **SLIDING),
    "gemma2": family(
        "gemma2",
        **SLIDING,
        attn_logit_softcapping=5.0,
        query_pre_attn_scalar=32,
        hidden_act="gelu_pytorch_tanh",  # SGLang reads this older name too
        tie_word_embeddings=True,
    ),
    "exaone4": family(  # the second layer has no positions
        "exaone4",
        **SLIDING,
        sliding_window_pattern="LG",
        # SGLang 0.5.23 has these values, whatever the configuration says.
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
    ),
    "qwen3.5": family("qwen3_5_text", **DELTA),
    "granite4": family(
        "granitemoehybrid",
        **STATE_SPACE,
        **MULTIPLIERS,
        num_local_experts=0,
        shared_intermediate_size=256,
    ),
    # Attention and Mamba-2 side by side in every layer.
    "falcon-h1": family(
        "falcon_h1",
        mamba_d_ssm=256,
        mamba_n_heads=4,
        mamba_n_groups=2,
        mamba_d_state=16,
        mamba_chunk_size=64,
        mamba_rms_norm=True,
        rms_norm_eps=1e-2,
        mamba_norm_before_gate=False,
        lm_head_multiplier=0.75,
        embedding_multiplier=2.0,
        mlp_multipliers=[1.2, 0.7],
        key_multiplier=0.6,
        attention_in_multiplier=1.1,
        attention_out_multiplier=0.9,
        ssm_multipliers=[0.8, 1.1, 0.9, 1.2, 0.7],
        ssm_in_multiplier=0.7,
        ssm_out_multiplier=0.6,
    ),
    "lfm2": family("lfm2", **CONVOLUTION, block_auto_adjust_ff_dim=False),
    # SGLang has no class of its own for these, and runs those of Transformers.
    "seed-oss": family("seed_oss"),
    "smollm3": family("smollm3", no_rope_layers=[1, 0]),  # the second layer has no positions
    "ministral": family("ministral", **SLIDING),
    # Layers with a window have a rotary base of their own.
    "gemma3": family("gemma3_text", **SLIDING, query_pre_attn_scalar=32, tie_word_embeddings=True),
}

"""What the layers of a model consist of, as its configuration says it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.configs.qwen3_5 import Qwen3_5MoeTextConfig, Qwen3_5TextConfig
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMultimodalLM

from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.modelmaker.multimodal import MULTIMODAL
from sglang_prefill_ext.modelmaker.presets import FAMILIES, PRESETS
from sglang_prefill_ext.sizing.layer_settings import layer_kinds, sublayers_of
from sglang_prefill_ext.sizing.mixers import Attention, LatentAttention
from sglang_prefill_ext.sizing.model import ModelShape
from sglang_prefill_ext.sizing.recurrences import DeltaRule, ShortConvolution, StateSpace
from sglang_prefill_ext.sizing.sublayers import Experts, LayerEmbedding, Mlp
from tests.unit.sizing.models import DELTA, SIZES

_OTHER_PARTS = ("vision", "visual", "audio", "multi_modal", "mm_projector")
RECURRENT = ("qwen3.5", "qwen3-next", "granite4", "falcon-h1", "nemotron-h", "lfm2-moe")
PLAIN = Attention(256, 8, 4, 32)


UNCOUNTED = ("kimi-linear", "longcat", "step3p7")
"""Presets of models that `plan` does not count."""


@pytest.mark.parametrize("preset", UNCOUNTED)
def test_models_that_are_not_counted_are_named(
    preset: str, model_dir: Callable[[str], Path]
) -> None:
    with pytest.raises(ConfigError, match="not that of a decoder that can be counted"):
        ModelShape.from_directory(model_dir(preset))


@pytest.mark.parametrize("preset", sorted({*FAMILIES, *MULTIMODAL} - {*UNCOUNTED}))
def test_all_weights_are_those_that_transformers_makes(preset: str) -> None:
    made = PRESETS[preset]
    config = AutoConfig.for_model(made.model_type, **made.shape)
    config.get_text_config().pad_token_id = 0
    kind = AutoModelForMultimodalLM if made.images else AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(config)
    shape = ModelShape.of_config(config.to_dict())
    wanted = sum(_counted(*each) for each in text_weights(model))
    assert shape.stored_weights == wanted


@pytest.mark.parametrize(
    "kind",
    "apertus gemma4_text gemma4_unified_text gpt_neox jais2 nanochat persimmon phi".split(),
)
def test_all_weights_are_those_of_a_configuration_that_transformers_writes(kind: str) -> None:
    config = AutoConfig.for_model(kind)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shape = ModelShape.of_config(json.loads(config.to_json_string()))
    assert shape.stored_weights == sum(_counted(*each) for each in text_weights(model))


def text_weights(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Of the part that reads text; weights with two names are there once."""
    return (
        (name, weight)
        for name, weight in model.named_parameters()
        if not any(part in name for part in _OTHER_PARTS)
    )


def _counted(name: str, weight: torch.Tensor) -> int:
    """Numbers of a map or a table, not of biases and not of maps to a single number."""
    is_map = weight.ndim > 1 and len(weight) > 1 and not name.endswith("bias")
    return weight.numel() if is_map else 0


@pytest.mark.parametrize(
    "preset",
    ["qwen3", "gpt-oss", "deepseek-v3", *RECURRENT, "gemma4", "gemma4-e", "nemotron-omni"],
)
def test_an_engine_counts_what_the_file_says(preset: str, model_dir: Callable[[str], Path]) -> None:
    """SGLang fills in further settings, and turns those of Gemma 4 around."""
    config = ModelConfig(str(model_dir(preset))).hf_config
    assert ModelShape.of_config(config.to_dict()) == ModelShape.from_directory(model_dir(preset))


@pytest.mark.parametrize("dense", [True, False])
def test_a_dense_model_has_no_experts_in_an_engine(dense: bool, tmp_path: Path) -> None:
    """SGLang's configuration of a dense Qwen3.5 has experts, too."""
    kind = Qwen3_5TextConfig if dense else Qwen3_5MoeTextConfig
    own = {} if dense else {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    sizes = SIZES | DELTA | own | {"full_attention_interval": 4, "head_dim": 32}
    written = {"model_type": kind.model_type, **sizes}
    (tmp_path / "config.json").write_text(json.dumps(written))
    shape = ModelShape.of_config(kind(**sizes).to_dict())
    assert (shape.experts is None) == dense
    if dense:
        assert shape == ModelShape.from_directory(tmp_path)


@pytest.mark.parametrize(
    ("config", "experts", "dense_layers"),
    [
        ({"num_local_experts": 8, "num_experts_per_tok": 2}, Experts(256, 8, 2, 704), 0),
        (
            {
                "num_experts": 60,
                "num_experts_per_tok": 4,
                "moe_intermediate_size": 64,
                "shared_expert_intermediate_size": 128,
                "decoder_sparse_step": 2,
                "mlp_only_layers": [1],
            },
            Experts(256, 60, 4, 64, shared_width=128),
            3,
        ),
        (
            {
                "n_routed_experts": 16,
                "num_experts_per_tok": 4,
                "moe_intermediate_size": 64,
                "n_shared_experts": 2,
                "first_k_dense_replace": 1,
            },
            Experts(256, 16, 4, 64, shared_width=128),
            1,
        ),
        (
            {
                "moe_num_experts": 64,
                "moe_k": 6,
                "moe_intermediate_size": 64,
                "moe_num_shared_experts": 2,
                "moe_layer_start_index": 1,
            },
            Experts(256, 64, 6, 64, shared_width=128),
            1,
        ),
        (
            {"num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 96},
            Experts(256, 8, 2, 704, shared_width=96),
            0,
        ),
        (
            {
                "num_experts": 8,
                "num_experts_per_tok": 2,
                "mlp_layer_types": ["dense", "sparse", "sparse", "dense"],
            },
            Experts(256, 8, 2, 704),
            2,
        ),
    ],
    ids=["Mixtral", "Qwen", "GLM", "Ernie", "Granite", "by layer"],
)
def test_experts(config: dict[str, Any], experts: Experts, dense_layers: int) -> None:
    mlps = sublayers_of(SIZES | config)[1::2]
    assert mlps.count(experts) == 4 - dense_layers
    if dense_layers:
        assert mlps.count(Mlp(256, 704)) == dense_layers


def test_latent_attention_by_hand() -> None:
    latent = {"kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 24}
    attention = sublayers_of(SIZES | latent | {"q_lora_rank": 48})[0]
    assert isinstance(attention, LatentAttention)
    assert (attention.head_dim, attention.value_dim, attention.kv_heads) == (48, 24, 8)
    assert attention.pair_operations == 2 * 8 * (48 + 24)
    kv = 256 * (64 + 16) + 64 * 8 * (32 + 24)
    assert attention.weights == 48 * (256 + 8 * 48) + kv + 8 * 24 * 256


def test_a_delta_rule_by_hand() -> None:
    rule, *_, gated, _ = sublayers_of(SIZES | DELTA)
    assert rule == DeltaRule(256, 2, 8, 4, 16, 4)
    older = {"full_attention_interval": 4} | DELTA
    del older["layer_types"]
    assert sublayers_of(SIZES | older) == sublayers_of(SIZES | DELTA)
    keys, values = 16, 64
    made = 256 * (2 * keys + 2 * values + 2 * 4) + values * 256 + 4 * (2 * keys + values)
    assert rule.weights == made
    assert DeltaRule(256, 2, 8, 4, 16, 4).rule_operations == 6 * 4 * 8 * 16
    assert gated.weights == PLAIN.weights + 256 * 256


MAMBA = {"mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_d_conv": 4}
MAMBA |= {"mamba_chunk_size": 64}
STATES = StateSpace(256, 8, 64, 2, 16, 4, 64)


def test_mamba_by_hand() -> None:
    # A gate and inputs of 512 numbers, two vectors of 16 for each of two groups, eight steps.
    assert STATES.weights == 256 * (2 * 512 + 2 * 2 * 16 + 8) + 4 * (512 + 64) + 512 * 256
    # Of a state of 8x64x16 numbers, each is written once and read once.
    assert STATES.rule_operations == 2 * 2 * 8 * 64 * 16


@pytest.mark.parametrize(
    "head",
    [{"mamba_d_head": 64}, {"mamba_d_head": "auto", "mamba_expand": 2}, {"mamba_d_ssm": 512}],
)
@pytest.mark.parametrize("names", [("mamba", "attention"), ("linear_attention", "full_attention")])
def test_granites_kinds_of_layers(head: dict[str, Any], names: tuple[str, str]) -> None:
    kinds = {"layer_types": [names[0], names[1], names[0], names[0]]}
    config = SIZES | MAMBA | head | kinds | {"shared_intermediate_size": 96}
    mlp = Mlp(256, 96)
    assert sublayers_of(config) == (STATES, mlp, PLAIN, mlp, *2 * (STATES, mlp))


def test_falcons_layers_have_mamba_beside_attention() -> None:
    config = SIZES | MAMBA | {"model_type": "falcon_h1", "mamba_d_ssm": 512}
    assert sublayers_of(config) == 4 * (STATES, PLAIN, Mlp(256, 704))


def test_nemotrons_layers_are_one_step_each() -> None:
    sizes = {"mamba_num_heads": 8, "mamba_head_dim": 64, "n_groups": 2, "ssm_state_size": 16}
    sizes |= {"conv_kernel": 4, "chunk_size": 64, "model_type": "nemotron_h"}
    experts = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    experts |= {"n_shared_experts": 1, "moe_shared_expert_intermediate_size": 128}
    config = SIZES | sizes | experts | {"hybrid_override_pattern": "M*E-"}
    made = sublayers_of(config)
    assert made == (STATES, PLAIN, Experts(256, 8, 2, 64, 128, maps=2), Mlp(256, 704, maps=2))
    config["layers_block_type"] = ["mamba", "attention", "moe", "mlp"]
    del config["hybrid_override_pattern"]
    assert sublayers_of(config) == made


@pytest.mark.parametrize(
    ("more", "width"),
    [
        ({"block_auto_adjust_ff_dim": False}, 704),
        ({"block_multiple_of": 256, "block_ffn_dim_multiplier": None}, 469),
        ({"block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0}, 512),  # 469 rounded up
        ({"block_multiple_of": 256, "block_ffn_dim_multiplier": 1.5, "block_ff_dim": 600}, 768),
    ],
)
def test_lfm2_by_hand(more: dict[str, Any], width: int) -> None:
    config = SIZES | {"model_type": "lfm2", "conv_L_cache": 3, "full_attn_idxs": [2]} | more
    conv, mlp = ShortConvolution(256, 3), Mlp(256, width)
    assert sublayers_of(config) == (*2 * (conv, mlp), PLAIN, mlp, conv, mlp)
    assert conv.weights == 256 * 3 * 256 + 256 * 3 + 256 * 256


GEMMA4 = {
    "model_type": "gemma4_text",
    "head_dim": 32,
    "sliding_window": 8,
    "layer_types": 2 * ["sliding_attention", "full_attention"],
    "hidden_size_per_layer_input": 16,
}
SLIDES = Attention(256, 8, 4, 32, window=8)
HEADS_OF_64 = [
    {"global_head_dim": 64, "num_global_key_value_heads": 2},
    {"per_layer_config": {each: {"head_dim": 64, "num_key_value_heads": 2} for each in "13"}},
    {
        "head_dim": 64,
        "num_key_value_heads": 2,
        "swa_head_dim": 32,
        "swa_num_key_value_heads": 4,
        "v_head_dim": 64,
        "swa_v_head_dim": 32,
    },
]


@pytest.mark.parametrize("form", HEADS_OF_64, ids=["Google", "Transformers", "SGLang"])
def test_gemma4_has_heads_of_two_shapes(form: dict[str, Any]) -> None:
    config = SIZES | GEMMA4 | {"attention_k_eq_v": True} | form
    own, mlp = LayerEmbedding(256, 16), Mlp(256, 704)
    full = Attention(256, 8, 2, 64, kv_maps=1)
    assert sublayers_of(config) == 2 * (SLIDES, mlp, own, full, mlp, own)
    assert full.kv_weights == 256 * 2 * 64
    assert own.weights == 3 * 256 * 16


def test_gemma4s_last_layers_share_keys_and_values() -> None:
    config = SIZES | GEMMA4 | {"num_kv_shared_layers": 2, "use_double_wide_mlp": True}
    first, *_, mlp, _ = sublayers_of(config)
    assert first == SLIDES
    assert sublayers_of(config)[6] == Attention(256, 8, 4, 32, window=8, kv_maps=0)
    assert mlp == Mlp(256, 2 * 704)


def test_tables_of_embeddings_by_layer_are_stored() -> None:
    table = {"vocab_size_per_layer_input": 1000, "num_kv_shared_layers": 0}
    shape = ModelShape.of_config(SIZES | GEMMA4 | table)
    assert shape.stored_weights == shape.weights + 8000 * 256 + 4 * 16 * 1000


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        ({"model_type": "gemma2"}, [8, None, 8, None]),
        ({"model_type": "gemma3_text"}, [8, 8, 8, 8]),
        ({"sliding_window_pattern": 4}, [8, 8, 8, None]),
        ({"model_type": "mistral"}, [None] * 4),
        ({"layer_types": ["sliding_attention"] + 3 * ["full_attention"]}, [8, None, None, None]),
    ],
)
def test_windows_of_layers(config: dict[str, Any], windows: list[int | None]) -> None:
    attentions = sublayers_of(SIZES | {"sliding_window": 8} | config)[::2]
    assert [each.window for each in attentions if isinstance(each, Attention)] == windows


def test_kinds_are_those_of_the_model() -> None:
    assert layer_kinds(SIZES) == 4 * ["full_attention"]

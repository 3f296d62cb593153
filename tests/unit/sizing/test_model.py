from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file
from sglang.srt.configs.qwen3_5 import Qwen3_5MoeTextConfig, Qwen3_5TextConfig

from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.sizing.layer_sizes import Experts, Recurrent
from sglang_prefill_ext.sizing.model import ModelShape

# One layer, hidden 4, two heads of 3 sharing one key/value head, MLP 5, 7 tokens.
SMALL = ModelShape(
    layers=1, hidden=4, heads=2, kv_heads=1, head_dim=3, intermediate=5, vocabulary=7
)
CONFIG: dict[str, Any] = {
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 704,
    "vocab_size": 8000,
}


def _read(directory: Path, **more: Any) -> ModelShape:
    (directory / "config.json").write_text(json.dumps(CONFIG | more))
    return ModelShape.from_directory(directory)


def test_operations_by_hand() -> None:
    # Weights: Q 4x6, K and V 4x3 each, output 6x4, gate, up and down 4x5 each: 132 in all.
    assert SMALL.kv_operations == 2 * (12 + 12)
    assert SMALL.layer_operations == 2 * (24 + 12 + 12 + 24 + 3 * 20)
    assert SMALL.weights == 132
    # Per pair and head a dot product and a weighted sum of 3 numbers each.
    assert SMALL.pair_operations == 2 * (3 + 3) * 2
    assert SMALL.readout_operations(7) == 2 * 4 * 7


def test_experts_by_hand() -> None:
    # Two layers, the first dense; of the other's 4 experts of width 3 two are active, and one
    # is shared.
    model = ModelShape(2, 4, 2, 1, 3, 5, 7, Experts(4, 2, 3, shared_width=3, dense_layers=1))
    attention, dense, expert, router = 24 + 12 + 12 + 24, 3 * 20, 3 * 12, 4 * 4
    assert model.routed_operations == 2 * 2 * expert
    assert model.layer_operations == 2 * (attention + 3 * expert + router)
    assert model.body_operations == 2 * (attention + dense) + model.layer_operations
    assert model.weights == 2 * attention + dense + 5 * expert + router
    assert model.stored_weights == model.weights + 2 * 28
    # A token reads two of four experts, three tokens an expert with a probability of 7/8.
    assert model.read_weights(1) == model.weights - 2 * expert
    assert model.read_weights(3) == round(model.weights - 4 / 8 * expert)
    assert model.read_weights(100) == model.weights


def test_sizes_are_read_from_the_configuration(tmp_path: Path) -> None:
    assert _read(tmp_path) == ModelShape(4, 256, 8, 4, 32, 704, 8000)
    assert _read(tmp_path, head_dim=64, tie_word_embeddings=True).head_dim == 64
    assert _read(tmp_path, tie_word_embeddings=True).tied
    (tmp_path / "config.json").write_text(json.dumps({"text_config": CONFIG}))
    assert ModelShape.from_directory(tmp_path) == ModelShape(4, 256, 8, 4, 32, 704, 8000)
    of_the_first_llama = {k: v for k, v in CONFIG.items() if k != "num_key_value_heads"}
    (tmp_path / "config.json").write_text(json.dumps(of_the_first_llama))
    assert ModelShape.from_directory(tmp_path).kv_heads == 8


@pytest.mark.parametrize(
    ("config", "experts"),
    [
        ({"num_local_experts": 8, "num_experts_per_tok": 2}, Experts(8, 2, 704)),
        (
            {
                "num_experts": 60,
                "num_experts_per_tok": 4,
                "moe_intermediate_size": 64,
                "shared_expert_intermediate_size": 128,
                "decoder_sparse_step": 2,
                "mlp_only_layers": [1],
            },
            Experts(60, 4, 64, shared_width=128, dense_layers=3),
        ),
        (
            {
                "n_routed_experts": 16,
                "num_experts_per_tok": 4,
                "moe_intermediate_size": 64,
                "n_shared_experts": 2,
                "first_k_dense_replace": 1,
            },
            Experts(16, 4, 64, shared_width=128, dense_layers=1),
        ),
        (
            {
                "moe_num_experts": 64,
                "moe_k": 6,
                "moe_intermediate_size": 64,
                "moe_num_shared_experts": 2,
                "moe_layer_start_index": 1,
            },
            Experts(64, 6, 64, shared_width=128, dense_layers=1),
        ),
        (
            {"num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 96},
            Experts(8, 2, 704, shared_width=96),
        ),
    ],
    ids=["Mixtral", "Qwen", "GLM", "Ernie", "Granite"],
)
def test_experts_are_read_from_the_configuration(
    config: dict[str, Any], experts: Experts, tmp_path: Path
) -> None:
    assert _read(tmp_path, **config).experts == experts


@pytest.mark.parametrize("preset", ["deepseek-v2", "deepseek-v3", "glm4-moe-lite"])
def test_weights_of_latent_attention_are_those_of_the_model(
    preset: str, model_dir: Callable[[str], Path]
) -> None:
    shape = ModelShape.from_directory(model_dir(preset))
    weights = load_file(model_dir(preset) / "model.safetensors")
    of_layers = [each for name, each in weights.items() if ".layers." in name and each.ndim > 1]
    assert shape.weights == sum(each.size for each in of_layers)
    assert (shape.head_dim, shape.value_dim, shape.kv_heads) == (48, 24, 4)
    assert shape.pair_operations == 2 * 4 * (48 + 24)


@pytest.mark.parametrize("preset", ["qwen3.5", "qwen3.5-vl"])
def test_weights_of_recurrent_layers_are_those_of_the_model(
    preset: str, model_dir: Callable[[str], Path]
) -> None:
    shape = ModelShape.from_directory(model_dir(preset))
    weights = load_file(model_dir(preset) / "model.safetensors")
    of_layers = [
        each
        for name, each in weights.items()
        if ".layers." in name and "visual" not in name and each.ndim > 1
    ]
    assert shape.weights == sum(each.size for each in of_layers)


RECURRENT = {
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}


def test_recurrent_layers_by_hand() -> None:
    recurrent = Recurrent.of_config(CONFIG | RECURRENT)
    assert recurrent == Recurrent(3, 2, 8, 4, 16, 4)
    older = {"full_attention_interval": 4} | RECURRENT
    del older["layer_types"]
    assert Recurrent.of_config(CONFIG | older) == recurrent
    model = ModelShape(4, 256, 8, 4, 32, 704, 8000, recurrent=recurrent)
    plain = replace(model, recurrent=None)
    gate, keys, values = 256 * 256, 16, 64
    made = 256 * (2 * keys + 2 * values + 2 * 4) + values * 256 + 4 * (2 * keys + values)
    attention = plain.weights // 4 - 3 * 256 * 704
    assert model.weights == plain.weights + gate + 3 * (made - attention)
    assert model.rule_operations == 3 * 6 * 4 * 8 * 16
    assert model.pair_tokens == pytest.approx(model.pair_operations / model.body_operations)


def test_a_recurrent_mixture_has_no_size_of_a_dense_layer(tmp_path: Path) -> None:
    experts = {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 96,
    }
    text = {key: size for key, size in CONFIG.items() if key != "intermediate_size"}
    config = {"text_config": text | RECURRENT | experts, "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = ModelShape.from_directory(tmp_path)
    assert shape.experts == Experts(8, 2, 64, shared_width=96)
    assert (shape.intermediate, shape.tied) == (0, True)


@pytest.mark.parametrize("dense", [True, False])
def test_an_engine_counts_what_the_file_says(dense: bool, tmp_path: Path) -> None:
    """SGLang's configuration of a dense Qwen3.5 has experts, too."""
    kind = Qwen3_5TextConfig if dense else Qwen3_5MoeTextConfig
    own = {} if dense else {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    sizes = CONFIG | RECURRENT | own | {"full_attention_interval": 4}
    written = {"model_type": kind.model_type, **sizes}
    (tmp_path / "config.json").write_text(json.dumps(written))
    shape = ModelShape.of_config(kind(**sizes).to_dict())
    assert (shape.experts is None) == dense
    if dense:
        assert replace(shape, head_dim=32) == ModelShape.from_directory(tmp_path)


def test_pairs_cost_what_their_arithmetic_costs() -> None:
    assert SMALL.pair_tokens == pytest.approx(SMALL.pair_operations / (2 * 132))


def test_what_cannot_be_counted_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json; name a local directory"):
        ModelShape.from_directory(tmp_path)
    with pytest.raises(ConfigError, match="v_head_dim is 0"):
        _read(tmp_path, kv_lora_rank=512, qk_rope_head_dim=64, v_head_dim=0)
    with pytest.raises(ConfigError, match="it has interleave_moe_layer_step"):
        _read(tmp_path, interleave_moe_layer_step=2)
    with pytest.raises(ConfigError, match="it has global_head_dim"):
        _read(tmp_path, global_head_dim=512)
    for name, size in (
        ("num_attention_heads", 0),
        ("num_hidden_layers", "36"),
        ("num_key_value_heads", None),
    ):
        with pytest.raises(ConfigError, match=f"{name} is {size!r}"):
            _read(tmp_path, **{name: size})
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json is no JSON"):
        ModelShape.from_directory(tmp_path)
    for broken in ("{}", "[]", '{"text_config": "x"}'):
        (tmp_path / "config.json").write_text(broken)
        with pytest.raises(ConfigError, match=r"config\.json is not that of a decoder"):
            ModelShape.from_directory(tmp_path)

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.sizing.mixers import Attention
from sglang_prefill_ext.sizing.model import ModelShape
from sglang_prefill_ext.sizing.sublayers import Experts, Mlp
from tests.unit.sizing.models import SIZES, decoder

# One layer, hidden 4, two heads of 3 sharing one key/value head, MLP 5, 7 tokens.
SMALL = decoder(layers=1, hidden=4, heads=2, kv_heads=1, head_dim=3, intermediate=5, vocabulary=7)
LAYER = (Attention(256, 8, 4, 32), Mlp(256, 704))


def _read(directory: Path, **more: Any) -> ModelShape:
    (directory / "config.json").write_text(json.dumps(SIZES | more))
    return ModelShape.from_directory(directory)


def test_operations_by_hand() -> None:
    # Weights: Q 4x6, K and V 4x3 each, output 6x4, gate, up and down 4x5 each: 132 in all.
    attention, mlp = SMALL.sublayers
    assert isinstance(attention, Attention)
    assert 2 * attention.kv_weights == 2 * (12 + 12)
    assert 2 * (attention.weights + mlp.weights) == 2 * (24 + 12 + 12 + 24 + 3 * 20)
    assert SMALL.weights == 132
    # Per pair and head a dot product and a weighted sum of 3 numbers each.
    assert SMALL.pair_operations == attention.pair_operations == 2 * (3 + 3) * 2
    assert SMALL.readout_operations(7) == 2 * 4 * 7


def test_experts_by_hand() -> None:
    # Two layers, the first dense; of the other's 4 experts of width 3 two are active, and one
    # is shared.
    settings = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 3}
    settings |= {"n_shared_experts": 1, "first_k_dense_replace": 1}
    model = decoder(2, 4, 2, 1, 3, 5, 7, **settings)
    attention, dense, expert, router = 24 + 12 + 12 + 24, 3 * 20, 3 * 12, 4 * 4
    assert model.experts is not None
    assert sum(isinstance(each, Experts) for each in model.sublayers) == 1
    assert model.experts.routed_operations == 2 * 2 * expert
    assert model.experts.active == 3 * expert + router
    assert model.body_operations == 2 * (2 * attention + dense + model.experts.active)
    assert model.weights == 2 * attention + dense + 5 * expert + router
    assert model.stored_weights == model.weights + 2 * 28
    # A token reads two of four experts, three tokens an expert with a probability of 7/8.
    assert model.read_weights(1) == model.weights - 2 * expert
    assert model.read_weights(3) == round(model.weights - 4 / 8 * expert)
    assert model.read_weights(100) == model.weights


def test_sizes_are_read_from_the_configuration(tmp_path: Path) -> None:
    wanted = ModelShape(4, 256, 8000, 4 * LAYER)
    assert _read(tmp_path) == wanted == decoder(4, 256, 8, 4, 32, 704, 8000)
    assert _read(tmp_path, head_dim=64).sublayers[0] == Attention(256, 8, 4, 64)
    assert _read(tmp_path, tie_word_embeddings=True).tied
    (tmp_path / "config.json").write_text(json.dumps({"text_config": SIZES}))
    assert ModelShape.from_directory(tmp_path) == wanted
    of_the_first_llama = {k: v for k, v in SIZES.items() if k != "num_key_value_heads"}
    (tmp_path / "config.json").write_text(json.dumps(of_the_first_llama))
    assert ModelShape.from_directory(tmp_path).sublayers[0] == Attention(256, 8, 8, 32)


@pytest.mark.parametrize(
    ("config", "tied"),
    [
        ({"model_type": "gemma3_text"}, True),
        ({"model_type": "gemma3_text", "tie_word_embeddings": False}, False),
        ({"model_type": "lfm2", "tie_embedding": False, "block_auto_adjust_ff_dim": False}, False),
        ({"model_type": "qwen3"}, False),
    ],
)
def test_one_table_of_embeddings_where_that_is_the_default(
    config: dict[str, Any], tied: bool, tmp_path: Path
) -> None:
    assert _read(tmp_path, **config).tied == tied


def test_pairs_cost_what_their_arithmetic_costs() -> None:
    assert SMALL.pair_tokens == pytest.approx(SMALL.pair_operations / (2 * 132))
    kinds = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
    assert decoder(2, 4, 2, 1, 3, 5, 7, **kinds).pair_tokens == pytest.approx(24 / (4 * 132))


def test_an_mlp_and_experts_side_by_side_add_up() -> None:
    experts = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 3}
    model = decoder(1, 4, 2, 1, 3, 5, 7, enable_moe_block=True, **experts)
    assert model.sublayers[1:] == (Experts(4, 4, 2, 3), Mlp(4, 5))


def test_what_cannot_be_counted_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json; name a local directory"):
        ModelShape.from_directory(tmp_path)
    with pytest.raises(ConfigError, match="v_head_dim is 0"):
        _read(tmp_path, kv_lora_rank=512, qk_rope_head_dim=64, v_head_dim=0)
    with pytest.raises(ConfigError, match="it has zero_expert_num"):
        _read(tmp_path, zero_expert_num=2)
    for name in (
        *("index_topk", "altup_num_inputs", "moe_latent_size", "mamba_dt_rank"),
        *("attn_layer_indices", "hybrid_layer_ids", "is_encoder_decoder", "local_attention"),
        *("residual_moe", "H_cycles", "loop_num", "layer_group_size"),
    ):
        with pytest.raises(ConfigError, match=f"it has {name}"):
            _read(tmp_path, **{name: 2})
    with pytest.raises(ConfigError, match="first Qwen generation"):
        _read(tmp_path, model_type="qwen")
    with pytest.raises(ConfigError, match="write 'num_hidden_layers' into the file"):
        ModelShape.of_config({})
    with pytest.raises(ConfigError, match="it has type_vocab_size"):
        _read(tmp_path, type_vocab_size=2)
    with pytest.raises(ConfigError, match="its layer 3 is of the kind 'minimax_m3_sparse'"):
        _read(tmp_path, layer_types=3 * ["full_attention"] + ["minimax_m3_sparse"])
    with pytest.raises(ConfigError, match="it names the kinds of 3 layers"):
        _read(tmp_path, layer_types=3 * ["full_attention"])
    with pytest.raises(ConfigError, match="'int' object is not iterable"):
        _read(tmp_path, layer_types=4)
    with pytest.raises(ConfigError, match="its layer 2 has its own intermediate_size"):
        _read(tmp_path, per_layer_config={"2": {"intermediate_size": 5}})
    with pytest.raises(ConfigError, match="list index out of range"):
        _read(tmp_path, mlp_layer_types=["dense"])
    with pytest.raises(ConfigError, match="9 of its 8 experts compute a token"):
        _read(tmp_path, num_experts=8, num_experts_per_tok=9, moe_intermediate_size=64)
    with pytest.raises(ConfigError, match="how many of its 8 experts compute a token"):
        _read(tmp_path, num_experts=8, moe_topk=2, moe_intermediate_size=64)
    for size in (-1, [64]):
        with pytest.raises(ConfigError, match="sliding_window is"):
            _read(tmp_path, layer_types=4 * ["sliding_attention"], sliding_window=size)
    with pytest.raises(ConfigError, match="no layer has attention"):
        _read(tmp_path, layer_types=4 * ["conv"], conv_L_cache=3)
    for name, size in (
        ("num_attention_heads", 0),
        ("num_hidden_layers", "36"),
        ("num_key_value_heads", None),
        ("intermediate_size", [704, 704, 704, 704]),
        ("head_dim", "128"),
    ):
        with pytest.raises(ConfigError) as refused:
            _read(tmp_path, **{name: size})
        assert f"{name} is {size!r}" in str(refused.value)
        assert "into the file" not in str(refused.value)
    for unread in ("{", "[" * 100_000):
        (tmp_path / "config.json").write_text(unread)
        with pytest.raises(ConfigError, match=r"config\.json is no JSON"):
            ModelShape.from_directory(tmp_path)
    for broken in ("{}", "[]", '{"text_config": "x"}'):
        (tmp_path / "config.json").write_text(broken)
        with pytest.raises(ConfigError, match=r"config\.json is not that of a decoder"):
            ModelShape.from_directory(tmp_path)

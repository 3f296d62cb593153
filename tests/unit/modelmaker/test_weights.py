import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMultimodalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from sglang_prefill_ext.modelmaker.preset import CONTEXT_LENGTH, VOCABULARY
from sglang_prefill_ext.modelmaker.presets import PRESETS
from sglang_prefill_ext.modelmaker.tokenizer import train_tokenizer
from sglang_prefill_ext.modelmaker.weights import build_model, favour, randomise, save_model
from tests.unit.modelmaker.test_presets import text_shape

SPREAD = [
    name
    for name, preset in PRESETS.items()
    if preset.weights == "spread" and not (preset.classes or preset.encoder or preset.bare)
]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(VOCABULARY, CONTEXT_LENGTH)


@pytest.mark.parametrize("name", SPREAD)
def test_labels_differ_by_several_nats_and_the_first_tokens_of_a_prompt_matter(
    name: str, tokenizer: PreTrainedTokenizerFast
) -> None:
    model, ids = _random_model(name, tokenizer), _token_ids()
    log_probs = _last_log_probs(model, ids)
    assert log_probs.std(dim=-1).min() > 2
    assert log_probs.std(dim=-1).max() < 6
    if not text_shape(PRESETS[name]).get("sliding_window"):
        other = ids.clone()
        other[:, :4] = ids[:, 4:8]
        difference = (log_probs - _last_log_probs(model, other)).abs()
        assert difference.mean(dim=-1).min() > 0.02


def test_the_sliding_window_hides_the_first_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    model, ids = _random_model("mistral-sliding", tokenizer), _token_ids(length=96)
    other = ids.clone()
    other[:, :16] = ids[:, 16:32]
    torch.testing.assert_close(_last_log_probs(model, ids), _last_log_probs(model, other))


def test_seed_decides_and_the_callers_random_state_is_left_alone(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    state = torch.get_rng_state()
    first, again = (_random_model("qwen2", tokenizer) for _ in range(2))
    other = _random_model("qwen2", tokenizer, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    for name, parameter in first.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name))
        assert not torch.equal(parameter, other.get_parameter(name))


@pytest.mark.parametrize("name", ["qwen3-moe", "gemma2"])
def test_saved_model_gives_the_same_logits(
    name: str, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    model = _random_model(name, tokenizer)
    save_model(model, PRESETS[name], tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.dtype == torch.float32
    assert torch.equal(_last_log_probs(loaded, _token_ids()), _last_log_probs(model, _token_ids()))


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("reward-qwen2", "Qwen2ForRewardModel"),
        ("bare-mistral", "MistralModel"),
        ("classifier-gemma2", "Gemma2ForSequenceClassification"),
        ("gemma3-vl", "Gemma3ForConditionalGeneration"),
    ],
)
def test_a_model_is_saved_under_the_name_by_which_sglang_knows_it(
    name: str, architecture: str, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    save_model(_random_model(name, tokenizer), PRESETS[name], tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == [architecture]


def test_the_part_of_gemma_that_sees_has_its_older_name(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    model = _random_model("gemma3-vl", tokenizer)
    save_model(model, PRESETS["gemma3-vl"], tmp_path)
    names = [name for name in load_file(tmp_path / "model.safetensors") if "vision" in name]
    assert names
    assert all(name.startswith("vision_tower.vision_model.") for name in names)
    loaded = AutoModelForImageTextToText.from_pretrained(tmp_path)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, loaded.get_parameter(name)), name


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("kimi-k25", "language_model.model.layers.1.mlp.experts.3.down_proj.weight"),
        ("kimi-linear", "model.layers.0.mlp.down_proj.weight"),
        ("step3p7", "model.layers.1.moe.router_bias"),
    ],
)
def test_weights_and_settings_have_the_names_that_sglang_reads(
    name: str, published: str, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    save_model(_random_model(name, tokenizer), PRESETS[name], tmp_path)
    assert published in load_file(tmp_path / "model.safetensors")
    text = json.loads((tmp_path / "config.json").read_text()).get("text_config", {})
    assert (text.get("moe_layers_enum") == "1") == (name == "step3p7")


def test_transformers_reads_what_is_written_of_nemotron_for_sglang(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    model = _random_model("nemotron-omni", tokenizer)
    save_model(model, PRESETS["nemotron-omni"], tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["llm_config"]["layers_block_type"][:3] == ["mamba", "moe", "attention"]
    loaded = AutoModelForMultimodalLM.from_pretrained(tmp_path)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, loaded.get_parameter(name)), name
    assert torch.equal(_last_log_probs(loaded, _token_ids()), _last_log_probs(model, _token_ids()))


def test_favoured_tokens_are_the_likeliest(tokenizer: PreTrainedTokenizerFast) -> None:
    model, prompt = _random_model("qwen3-vl", tokenizer), [50, 60, 70]
    favour(model, [271, 272], prompt)
    likeliest = _last_log_probs(model, torch.tensor([prompt])).topk(2)
    assert sorted(likeliest.indices[0].tolist()) == [271, 272]
    torch.testing.assert_close(*likeliest.values[0])


def _random_model(name: str, tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> PreTrainedModel:
    model = build_model(PRESETS[name], tokenizer, seed)
    randomise(model, seed)
    return model.eval()


def _token_ids(length: int = 48) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(3, VOCABULARY, (4, length), generator=generator)


@torch.inference_mode()
def _last_log_probs(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    reader = getattr(model, "thinker", model)  # of Qwen3-Omni
    logits: torch.Tensor = reader(ids, use_cache=False).logits
    return logits[:, -1].log_softmax(-1)

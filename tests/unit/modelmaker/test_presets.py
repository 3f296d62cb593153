from collections.abc import Mapping
from typing import Any

from sglang_prefill_ext.modelmaker.preset import Preset
from sglang_prefill_ext.modelmaker.presets import ENCODERS, PRESETS

LATENT = ("deepseek-v2", "deepseek-v3", "glm4-moe-lite", "kimi-k25", "kimi-linear", "longcat")
UNGROUPED = ("olmo", "olmoe", *LATENT)


def text_shape(preset: Preset) -> Mapping[str, Any]:
    """Arguments of the part that reads text."""
    whole = preset.shape.get("thinker_config", preset.shape)
    return whole.get("text_config", whole)


def test_micro_and_tiny_are_the_published_bench_shapes() -> None:
    keys = ("num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads")
    assert [PRESETS["micro"].shape[key] for key in keys] == [1, 64, 8_000, 4]
    assert [PRESETS["tiny"].shape[key] for key in keys] == [4, 256, 8_000, 8]


def test_heads_can_be_grouped_and_split_over_two_ranks() -> None:
    for name in PRESETS.keys() - ENCODERS.keys():
        shape = text_shape(PRESETS[name])
        heads, shared = shape["num_attention_heads"], shape["num_key_value_heads"]
        assert (heads > shared) == (name not in UNGROUPED), name
        assert heads % shared == shared % 2 == 0, name


def test_only_these_presets_have_a_window() -> None:
    windowed = {name for name, p in PRESETS.items() if text_shape(p).get("sliding_window")}
    assert windowed == {
        *("mistral-sliding", "gemma2", "classifier-gemma2", "gemma3", "gemma3-vl", "gpt-oss"),
        *("gemma4", "gemma4-moe", "gemma4-e"),
        *("cohere2", "exaone4", "granite-swa", "granite-moe-swa"),
        *("cohere2-moe", "cohere2-vision", "mellum", "laguna", "exaone-moe", "afmoe"),
        *("mimo-v2", "step3p7", "ministral", "embedding-gemma"),
    }

from sglang_prefill_ext.modelmaker.presets import ENCODERS, PRESETS


def test_micro_and_tiny_are_the_published_bench_shapes() -> None:
    keys = ("num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads")
    assert [PRESETS["micro"].shape[key] for key in keys] == [1, 64, 8_000, 4]
    assert [PRESETS["tiny"].shape[key] for key in keys] == [4, 256, 8_000, 8]


def test_heads_can_be_grouped_and_split_over_two_ranks() -> None:
    for name in PRESETS.keys() - ENCODERS.keys():
        shape = PRESETS[name].shape
        heads, shared = shape["num_attention_heads"], shape["num_key_value_heads"]
        assert (heads > shared) == (name != "olmoe"), name
        assert heads % shared == shared % 2 == 0, name


def test_only_these_presets_have_a_window() -> None:
    windowed = {name for name, p in PRESETS.items() if p.shape.get("sliding_window")}
    assert windowed == {
        *("mistral-sliding", "gemma2", "gemma3", "gpt-oss", "cohere2"),
        *("cohere2-moe", "mellum", "laguna", "exaone-moe", "afmoe"),
    }

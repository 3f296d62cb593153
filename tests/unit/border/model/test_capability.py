"""Which servers are packed, and what is known of their models."""

from __future__ import annotations

import inspect
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers.pooler import Pooler, PoolingType
from sglang.srt.layers.sparse_pooler import SparsePooler
from sglang.srt.models.bert import BertModel
from torch import nn
from transformers import AutoConfig, AutoModel

from sglang_prefill_ext.border.model.capability import declined_reason
from sglang_prefill_ext.border.model.model_classes import (
    encoder_traits,
    longest_packed,
    reads_places,
)
from sglang_prefill_ext.frontend.packed_path import EncoderTraits
from sglang_prefill_ext.wire.stock_reason import StockReason


def plain_config(context_len: int = 1, *, use_ngram_embedding: bool = False) -> Any:
    text = SimpleNamespace()
    about = {"use_ngram_embedding": use_ngram_embedding, "is_embedding_gemma": False}
    return SimpleNamespace(context_len=context_len, hf_text_config=text, **about)


def declined(about: dict[str, bool] | None = None, **runner: Any) -> StockReason | None:
    """The reason why a scheduler is declined; by default one of a generating model."""
    runner = {"model_config": plain_config(), "attn_backend": object()} | runner
    traits = {"enable_lora": False, "is_generation": True} | (about or {})
    worker = SimpleNamespace(model_runner=SimpleNamespace(**runner))
    return declined_reason(SimpleNamespace(**traits, tp_worker=worker))


LINEAR = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")


@pytest.mark.parametrize(
    ("modules", "overlap", "experts", "reason"),
    [
        (LINEAR, False, False, "model_architecture"),  # which is looked at next
        (LINEAR, True, False, "lora_overlap_loading"),
        (LINEAR, False, True, "lora_experts"),
        ((*LINEAR, "lm_head"), False, False, "lora_vocabulary"),
        ((*LINEAR, "embed_tokens"), False, False, "lora_vocabulary"),
    ],
)
def test_adapters_that_packed_forwards_do_not_apply_are_declined(
    modules: tuple[str, ...], overlap: bool, experts: bool, reason: str
) -> None:
    manager = SimpleNamespace(
        target_modules=set(modules), lora_backend=SimpleNamespace(is_moe_lora=experts)
    )
    lora = {"enable_lora": True, "enable_lora_overlap_loading": overlap}
    assert declined(lora, model=object(), lora_manager=manager) == reason


@pytest.mark.parametrize(
    ("pooler", "lora", "reason"),
    [
        (object.__new__(SparsePooler), False, "pooling"),  # it makes no plain vectors
        (object.__new__(SparsePooler), True, "lora_encoder"),
        (Pooler(PoolingType.MEAN, normalize=True), False, "pooling"),
        (Pooler(PoolingType.LAST, normalize=True), False, "pooling"),
    ],
)
def test_encoders_are_declined(pooler: nn.Module, lora: bool, reason: str) -> None:
    model = object.__new__(BertModel)
    model.__dict__["pooler"] = pooler
    assert declined({"enable_lora": lora, "is_generation": False}, model=model) == reason


ORIGINAL = {"original_max_position_embeddings": 64}


class TransformersForCausalLM(nn.Module):
    """Stands for the Transformers backend; only the kinds of rotation are read."""

    def __init__(self, kinds: Any) -> None:
        super().__init__()
        self.rotary = nn.Module()
        if kinds:
            self.rotary.rope_type = kinds


@pytest.mark.parametrize(
    ("kinds", "reason"),
    [
        ("dynamic", "long_rope"),
        ({"full_attention": "longrope", "sliding_attention": "default"}, "long_rope"),
        ("yarn", "no_attention_layers"),  # which is looked at next
        ({"full_attention": "default"}, "no_attention_layers"),
        (None, "no_attention_layers"),
    ],
)
def test_rotations_that_the_longest_prompt_decides_are_declined(kinds: Any, reason: str) -> None:
    model, config = TransformersForCausalLM(kinds), plain_config(context_len=32)
    assert declined(model=model, model_config=config) == reason


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("recurrent_gemma", "attention_variant"),  # two of its three layers carry a state
        ("smollm3", "no_attention_layers"),  # which is looked at next
    ],
)
def test_layers_of_transformers_that_do_not_attend_are_declined(
    model_type: str, reason: str
) -> None:
    config = AutoConfig.for_model(model_type, num_hidden_layers=3)
    model = TransformersForCausalLM(None)
    with torch.device("meta"):  # without memory
        model.layers = AutoModel.from_config(config)
    model.__dict__["attention_instances"] = dict.fromkeys(range(3))
    assert declined(model=model) == reason


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        ({}, 9000),
        ({"rope_parameters": None}, 9000),
        ({"rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 64}}, 9000),
        ({"rope_parameters": {"rope_type": "longrope"}, **ORIGINAL}, 64),
        ({"rope_parameters": {"rope_type": "longrope", **ORIGINAL}}, 64),
        ({"rope_parameters": {"rope_type": "longrope"}}, 9000),  # then SGLang never changes it
        ({"rope_scaling": {"type": "longrope"}, **ORIGINAL}, 64),
        (
            {
                "rope_parameters": {"rope_type": "longrope"},
                "original_max_position_embeddings": 9001,
            },
            9000,
        ),
    ],
)
def test_prompts_are_packed_up_to_where_they_change_the_rotation_of_others(
    config: dict[str, Any], longest: int
) -> None:
    text = SimpleNamespace(**config)
    model = SimpleNamespace(context_len=9000, hf_text_config=text, is_embedding_gemma=False)
    assert longest_packed(model) == longest


@pytest.mark.parametrize(("context", "longest"), [(2048, 257), (200, 200)])
def test_prompts_of_embedding_gemma_are_packed_up_to_its_windows(
    context: int, longest: int
) -> None:
    text = SimpleNamespace(sliding_window=257)
    model = SimpleNamespace(context_len=context, hf_text_config=text, is_embedding_gemma=True)
    assert longest_packed(model) == longest


class HYV3ForCausalLM(nn.Module):
    """Stands for Hunyuan 3; only whether its own kernel may be used is read."""

    def __init__(self, uses: bool | None) -> None:
        super().__init__()
        self.use_hpc_ops_fp8_attn = uses


@pytest.mark.parametrize(
    ("uses", "quantised", "reason"),
    [
        (None, True, "attention_variant"),  # SGLang decides it in its first forward
        (True, True, "attention_variant"),
        (False, True, "no_attention_layers"),  # which is looked at next
        (None, False, "no_attention_layers"),
    ],
)
def test_queries_that_sglang_quantises_by_a_kernel_of_its_own_are_declined(
    uses: bool | None, quantised: bool, reason: str
) -> None:
    backend = SimpleNamespace(use_fp8=quantised)
    assert declined(model=HYV3ForCausalLM(uses), attn_backend=backend) == reason


class DeepseekV3ForCausalLM(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.attention = nn.Module()
        self.attention.use_dsa = sparse


@pytest.mark.parametrize(
    ("sparse", "ngrams", "reason"),
    [
        (True, False, "attention_variant"),
        (False, True, "model_architecture"),
        (False, False, "no_attention_layers"),  # which is looked at next
    ],
)
def test_attention_to_chosen_keys_and_embeddings_of_ngrams_are_declined(
    sparse: bool, ngrams: bool, reason: str
) -> None:
    config = plain_config(use_ngram_embedding=ngrams)
    assert declined(model=DeepseekV3ForCausalLM(sparse), model_config=config) == reason


def config(architecture: str, labels: int = 2) -> Any:
    """A `ModelConfig` like those of real checkpoints with 514 or 512 positions."""
    is_roberta = architecture.startswith("XLM")
    hf_config = SimpleNamespace(
        architectures=[architecture],
        max_position_embeddings=514 if is_roberta else 512,
        pad_token_id=1 if is_roberta else 0,
        type_vocab_size=1 if is_roberta else 2,
        num_labels=labels,
    )
    return SimpleNamespace(hf_config=hf_config, is_embedding_gemma=False)


@pytest.mark.parametrize(
    ("architecture", "labels", "traits"),
    [
        ("BertModel", 2, (2, 512, False)),
        ("BertForSequenceClassification", 1, (2, 512, True)),
        ("BertForSequenceClassification", 3, (2, 512, False)),
        ("XLMRobertaModel", 1, (1, 512, False)),
        ("XLMRobertaForSequenceClassification", 1, (1, 512, True)),
    ],
)
def test_traits_of_encoders(architecture: str, labels: int, traits: tuple[int, int, bool]) -> None:
    assert encoder_traits(config(architecture, labels)) == EncoderTraits(*traits)


def test_embedding_gemma_is_an_encoder_with_the_name_of_a_decoder() -> None:
    text = {"architectures": ["Gemma3TextModel"], "max_position_embeddings": 2048, "num_labels": 2}
    model = SimpleNamespace(hf_config=SimpleNamespace(**text), is_embedding_gemma=True)
    assert encoder_traits(model) == EncoderTraits(1, 2048, makes_numbers=False)


def test_decoders_have_none() -> None:
    assert encoder_traits(config("Qwen3ForCausalLM")) is None


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("qwen2_classification", "Qwen2ForSequenceClassification"),
        ("qwen3_classification", "Qwen3ForSequenceClassification"),
        ("llama_classification", "LlamaForClassification"),
        ("llama_reward", "LlamaForSequenceClassification"),
        ("gemma2_reward", "Gemma2ForSequenceClassification"),
        ("qwen2_rm", "Qwen2ForRewardModel"),
        ("qwen3_rm", "Qwen3ForRewardModel"),
    ],
)
def test_heads_that_read_any_token_are_those_that_sglang_lets(module: str, name: str) -> None:
    model: Any = getattr(import_module(f"sglang.srt.models.{module}"), name)
    assert reads_places(of_classes([name])) == ("score_and_pool" in code_names(model.forward))
    assert not reads_places(of_classes([name, "Other"]))
    assert not reads_places(of_classes([]))
    assert not reads_places(of_classes(None))


def of_classes(names: list[str] | None) -> Any:
    """A configuration of SGLang's of a model of these classes."""
    return SimpleNamespace(hf_config=SimpleNamespace(architectures=names))


def code_names(function: Any) -> tuple[str, ...]:
    """Names that a function calls, beneath its decorators."""
    names: tuple[str, ...] = inspect.unwrap(function).__code__.co_names
    return names

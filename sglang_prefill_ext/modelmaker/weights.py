"""Models from presets, with random weights that make parity tests mean something."""

import copy
import math
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMultimodalLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging as hf_logging

from sglang_prefill_ext.modelmaker.preset import Preset
from sglang_prefill_ext.modelmaker.published import publish

LOGIT_STD = 3.0
"""Spread of the random models' logits, in nats, so that labels differ by several nats."""

_ATTENTION_GAIN = 1.5
_ROUTER_GAIN = 2.0
_NOISE = 0.1
_QUIET = 0.05


def build_model(preset: Preset, tokenizer: PreTrainedTokenizerFast, seed: int) -> PreTrainedModel:
    """The model of a preset with its architecture's default initialisation.

    Deterministic in `seed`; the caller's random state is left alone. Nothing is downloaded.
    """
    tokens = {
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    shape = copy.deepcopy(dict(preset.shape))
    if preset.images:
        shape.get("thinker_config", shape)["text_config"] |= tokens
    config = AutoConfig.for_model(preset.model_type, **tokens, **shape)
    kind = _kind(preset)
    if preset.classes:
        config.num_labels = preset.classes
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = kind.from_config(config, dtype=getattr(torch, preset.dtype))
        if preset.reward:
            make_reward_model(model)
    return model


def _kind(preset: Preset) -> Any:
    if preset.classes:
        return AutoModelForSequenceClassification
    if preset.images:
        return AutoModelForMultimodalLM
    return AutoModel if preset.bare or preset.encoder else AutoModelForCausalLM


def make_reward_model(model: Any) -> None:
    """Give a classifier the head of a reward model, for which Transformers has no class.

    SGLang knows Qwen's reward models by the name of their class.
    """
    width = model.config.hidden_size
    model.score = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
    kind = type(model)
    name = kind.__name__.replace("ForSequenceClassification", "ForRewardModel")
    model.__class__ = type(name, (kind,), {})


@torch.no_grad()
def randomise(model: PreTrainedModel, seed: int) -> None:
    """Redraw all weights so that every part of the model shows in the logits.

    The default initialisation (standard deviation 0.02) of a small model gives nearly uniform
    logits and nearly uniform attention, which hide most mistakes. Here every linear map keeps
    the scale of its input (``std = 1 / sqrt(fan_in)``), queries and keys are large enough that
    attention picks some tokens, and logits spread by `LOGIT_STD` nats.
    """
    generator = torch.Generator().manual_seed(seed)
    tied = model.config.get_text_config().tie_word_embeddings
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("sinks"):
            parameter.copy_(noise.bfloat16())  # SGLang keeps no more of them
        elif parameter.ndim == 1:
            # Norms keep their default (1, or 0 where the layer adds 1), biases are 0.
            gain = _ATTENTION_GAIN if name.endswith(("q_norm.weight", "k_norm.weight")) else 1.0
            if gain != 1 and "gemma4" in model.config.model_type:  # whose scores have no scale
                gain *= len(parameter) ** -0.25
            parameter.copy_(parameter * gain + noise * _NOISE)
        else:
            parameter.copy_(noise * _std(name, parameter, tied))
    for name, buffer in model.named_buffers():
        if name.endswith(("correction_bias", "layer_scalar")):  # learnt, but kept as a buffer
            buffer.add_(torch.randn(buffer.shape, generator=generator) * _NOISE)


@torch.no_grad()
def favour(model: PreTrainedModel, token_ids: list[int], prompt: list[int]) -> None:
    """Make some tokens the most likely ones after prompts that end like this one.

    Their logits there are `LOGIT_STD` and differ from prompt to prompt; all others come close to 0.
    """
    head = model.get_output_embeddings().weight
    chosen = head[token_ids].clone()
    state = model(torch.tensor([prompt]), output_hidden_states=True).hidden_states[-1][0, -1]
    head *= _QUIET
    head[token_ids] = chosen + torch.outer((LOGIT_STD - chosen @ state) / (state @ state), state)


def save_model(model: PreTrainedModel, preset: Preset, directory: Path) -> None:
    """Write `config.json`, `generation_config.json` and `model.safetensors`."""
    hf_logging.disable_progress_bar()
    try:
        model.save_pretrained(directory)
    finally:
        hf_logging.enable_progress_bar()
    publish(directory, preset.model_type, preset.shape)


def _std(name: str, parameter: torch.Tensor, tied: bool) -> float:
    fan_in_std = 1 / math.sqrt(parameter.shape[-1])
    match name.split(".")[-2]:
        case "embed_tokens":
            return LOGIT_STD * fan_in_std if tied else 1.0
        case "lm_head" | "score" | "classifier" | "out_proj":
            return LOGIT_STD * fan_in_std
        case "q_proj" | "k_proj" | "query" | "key":
            return _ATTENTION_GAIN * fan_in_std
        case "gate":
            return _ROUTER_GAIN * fan_in_std
        case "proj" if ".router." in name:  # whose input is divided by the root of its size
            return _ROUTER_GAIN
        case _:
            return fan_in_std

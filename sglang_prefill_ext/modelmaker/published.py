"""Names and layouts that published models have, where Transformers writes others.

Of two that Transformers reads, SGLang 0.5.23 reads the published one.
"""

import json
import re
from collections.abc import Mapping
from itertools import starmap
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file


def publish(directory: Path, model_type: str, shape: Mapping[str, Any]) -> None:
    """Change weights and settings in a directory that Transformers has written.

    Args:
        model_type: of the preset.
        shape: of the preset.
    """
    if renamed := _WEIGHTS.get(model_type):
        path = directory / "model.safetensors"
        save_file(dict(starmap(renamed, load_file(path).items())), path, {"format": "pt"})
    if changed := _SETTINGS.get(model_type):
        path = directory / "config.json"
        config = changed(json.loads(path.read_text()), shape)
        path.write_text(json.dumps(config, indent=2) + "\n")


def _as_given(config: dict[str, Any], shape: Mapping[str, Any]) -> dict[str, Any]:
    return config | dict(shape)


def _of_nemotron(config: dict[str, Any], _shape: Mapping[str, Any]) -> dict[str, Any]:
    names = {"linear_attention": "mamba", "full_attention": "attention"}
    for kinds in ("layers_block_type", "mtp_layers_block_type"):
        config[kinds] = [names.get(kind, kind) for kind in config[kinds]]
    return config


def _of_nemotron_omni(config: dict[str, Any], shape: Mapping[str, Any]) -> dict[str, Any]:
    sound = config.pop("audio_config")
    config["sound_config"] = {each: sound[each] for each in sound if each not in _OF_SGLANG}
    config["llm_config"] = _of_nemotron(config.pop("text_config"), shape)
    config["vit_hidden_size"] = config.pop("vision_hidden_size")
    return config


def _older_name(name: str, weight: torch.Tensor) -> tuple[str, torch.Tensor]:
    return re.sub(r"^vision_tower\.(?!vision_model\.)", "vision_tower.vision_model.", name), weight


def _older_layout(name: str, weight: torch.Tensor) -> tuple[str, torch.Tensor]:
    return name, weight.transpose(1, 2).contiguous() if ".experts." in name else weight


def _published_name(name: str, weight: torch.Tensor) -> tuple[str, torch.Tensor]:
    for part, published in (
        (r"language_model\.model\.blocks", "language_model.model.layers"),
        (r"model\.mm_projector", "mm_projector"),
        (r"vision_tower\.encoder\.patch_embed", "vision_tower.patch_embed"),
        (r"block_sparse_moe\.(?=gate_proj|up_proj|down_proj)", "mlp."),  # of a dense layer
    ):
        name = re.sub(part, published, name)
    return name, weight


_WEIGHTS = {
    "gemma3": _older_name,
    "kimi_k25": _published_name,
    "kimi_linear": _published_name,
    "qwen3_vl_moe": _older_layout,
}
_SETTINGS = {"nemotron_h": _of_nemotron, "nemotron_h_omni": _of_nemotron_omni, "step3p7": _as_given}
_OF_SGLANG = {"attention_bias", "max_position_embeddings", "scale_input"}
"""Of a part that hears, which SGLang sets itself."""

"""Makes random LoRA adapters in PEFT's form, and merges one into a model's weights."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tests.integration.support.client import Client, wait_until

LORA_FLAGS = ("--enable-lora", "--lora-backend", "torch_native")

ALL_MAPS = tuple(f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down"))
_SPREAD = 0.5
"""Size of what an adapter adds to a linear map's output, which is about one: large enough to show.
"""


@dataclass(frozen=True)
class Adapter:
    """An adapter of linear maps of a model's layers.

    Attributes:
        name: by which requests choose it.
        path: its directory.
    """

    name: str
    path: Path
    rank: int
    alpha: int

    @property
    def named_path(self) -> str:
        """Name and path in the form of ``--lora-paths``."""
        return f"{self.name}={self.path}"

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of a server with only this adapter."""
        return (*LORA_FLAGS, "--lora-paths", self.named_path)

    def merge_into(self, model: torch.nn.Module) -> None:
        """Add ``alpha / rank * B @ A`` to the weights of a Hugging Face model."""
        weights: dict[str, torch.Tensor] = dict(model.named_parameters())
        with safe_open(self.path / "adapter_model.safetensors", framework="pt") as file:
            for key in (key for key in file.keys() if "lora_A" in key):  # noqa: SIM118
                a, b = file.get_tensor(key), file.get_tensor(key.replace("lora_A", "lora_B"))
                weight = weights[key.removeprefix("base_model.model.").replace(".lora_A", "")]
                with torch.no_grad():
                    weight += (self.alpha / self.rank * b @ a).to(weight.dtype)


def make_adapter(
    name: str,
    model: Path,
    directory: Path,
    *,
    rank: int,
    seed: int = 0,
    maps: Sequence[str] = ALL_MAPS,
) -> Adapter:
    """Write a random adapter for the model in a directory, of all linear maps of these names."""
    adapter = Adapter(name, directory / name, rank, alpha=2 * rank)
    adapter.path.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    with safe_open(model / "model.safetensors", framework="pt") as file:
        for key in filter(re.compile(rf"\.({'|'.join(maps)})\.weight$").search, file.keys()):
            wide, deep = file.get_slice(key).get_shape()
            shapes = {"A": (rank, deep), "B": (wide, rank)}
            for matrix, shape in shapes.items():
                drawn = torch.randn(shape, generator=generator) / shape[1] ** 0.5
                scale = _SPREAD * rank / adapter.alpha if matrix == "B" else 1.0
                place = key.replace(".weight", f".lora_{matrix}.weight")
                tensors[f"base_model.model.{place}"] = drawn * scale
    save_file(tensors, adapter.path / "adapter_model.safetensors")
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": adapter.alpha,
        "target_modules": list(maps),
    }
    (adapter.path / "adapter_config.json").write_text(json.dumps(config))
    return adapter


def unload(client: Client, name: str) -> httpx.Response:
    """Have an adapter unloaded; the server answers once no request uses it."""
    return client.post("/unload_lora_adapter", {"lora_name": name})


def wait_until_unlisted(client: Client, name: str) -> None:
    """Wait until an `unload` has begun: new requests do not find the adapter any more."""

    def unlisted() -> bool:
        models = client.http.get("/v1/models").json()["data"]
        return name not in [model["id"] for model in models]

    wait_until(unlisted)

"""Sizes of a decoder, read from its `config.json`. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from sglang_prefill_ext.errors import ConfigError

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_ACTIVE = ("num_experts_per_tok", "moe_k")
_SHARED = ("n_shared_experts", "moe_num_shared_experts")
_SHARED_WIDTH = ("shared_expert_intermediate_size", "shared_intermediate_size")
_DENSE_AT_FIRST = ("first_k_dense_replace", "moe_layer_start_index")
_UNCOUNTED = (
    "kv_lora_rank",
    "full_attention_interval",
    "linear_attn_config",
    "conv_L_cache",
    "mamba_d_state",
    "ssm_state_size",
    "interleave_moe_layer_step",
)
"""Settings of models that are not counted here: with compressed K/V, with recurrent layers, or with
two sizes of MLPs, as Llama 4."""


@dataclass(frozen=True, slots=True)
class Experts:
    """Sizes of a mixture of experts.

    Attributes:
        count: number of routed experts of a layer.
        active: number of routed experts that compute a token.
        width: intermediate size of each.
        shared_width: that of all experts together that compute every token; 0 if there are none.
        dense_layers: number of layers that have one MLP instead; never the last layer.
    """

    count: int
    active: int
    width: int
    shared_width: int = 0
    dense_layers: int = 0

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Self | None:
        """Read them from a `config.json`; None for a dense model."""
        count, active = _number(config, _EXPERTS), _number(config, _ACTIVE)
        if not count or not active:
            return None
        width = config.get("moe_intermediate_size") or config["intermediate_size"]
        shared = _number(config, _SHARED_WIDTH) + width * _number(config, _SHARED)
        step = config.get("decoder_sparse_step") or 1
        layers = range(config["num_hidden_layers"])
        dense = set(config.get("mlp_only_layers") or ())
        dense |= {each for each in layers if (each + 1) % step}
        dense |= set(range(_number(config, _DENSE_AT_FIRST)))
        return cls(count, active, width, shared, len(dense))


def _number(config: Mapping[str, Any], names: Iterable[str]) -> int:
    """The value of a setting that model families name differently; 0 if there is none."""
    return next((int(config[name]) for name in names if config.get(name)), 0)


def _size(config: Mapping[str, Any], name: str) -> int:
    """Read a size; raises KeyError if it is missing, ValueError if it is no whole number > 0."""
    size = config[name]
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"{name} is {size!r:.80}")
    return size


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a decoder with gated MLPs and full attention.

    Attributes:
        intermediate: size of a dense layer's MLP.
        experts: of the layers that have them; None for a dense model.
        tied: the output head has the weights of the embedding.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    experts: Experts | None = None
    tied: bool = False

    @classmethod
    def from_directory(cls, model: Path) -> Self:
        """Read the `config.json` of a Qwen-, Llama-, Mistral- or Mixtral-like model.

        Raises:
            ConfigError: there is no such file, or it lacks a size.
        """
        path = model / "config.json"
        if not path.is_file():
            raise ConfigError(
                f"model {str(model)!r}: there is no config.json; name a local directory that "
                "holds a model in Hugging Face format."
            )
        try:
            return cls._of_config(json.loads(path.read_text()))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"model {str(model)!r}: config.json is not that of a decoder that can be counted "
                f"({type(error).__name__}: {error}); name a Qwen-, Llama-, Mistral- or "
                "Mixtral-like model."
            ) from error

    @classmethod
    def _of_config(cls, config: dict[str, Any]) -> Self:
        config = config.get("text_config") or config
        if uncounted := [name for name in _UNCOUNTED if config.get(name)]:
            raise ValueError(f"it has {uncounted[0]}")
        heads = _size(config, "num_attention_heads")
        return cls(
            layers=_size(config, "num_hidden_layers"),
            hidden=_size(config, "hidden_size"),
            heads=heads,
            kv_heads=_size({"num_key_value_heads": heads} | config, "num_key_value_heads"),
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            intermediate=_size(config, "intermediate_size"),
            vocabulary=_size(config, "vocab_size"),
            experts=Experts.of_config(config),
            tied=bool(config.get("tie_word_embeddings", False)),
        )

    @property
    def kv_operations(self) -> int:
        """Operations of one layer's key and value projections for one token."""
        return 2 * 2 * self.kv_heads * self.head_dim * self.hidden

    @property
    def layer_operations(self) -> int:
        """Operations of the last layer's linear maps for one token: QKV, output, gate, up, down."""
        return self._attention_operations + self._sparse_operations

    @property
    def body_operations(self) -> int:
        """Operations of the linear maps of all layers for one token."""
        dense = self._dense_layers * self._mlp_operations(self.intermediate)
        sparse = self._sparse_layers * self._sparse_operations
        return self.layers * self._attention_operations + dense + sparse

    @property
    def pair_operations(self) -> int:
        """Operations of one layer's attention for one pair of tokens: dot product and sum."""
        return 2 * 2 * self.heads * self.head_dim

    @property
    def routed_operations(self) -> int:
        """Operations of one layer's routed experts for one token; 0 for a dense model."""
        return self._mlp_operations(self.experts.active * self.experts.width) if self.experts else 0

    @property
    def weights(self) -> int:
        """Numbers in all layers; the output head is counted with the read-out."""
        return round(self._weights(1.0))

    @property
    def stored_weights(self) -> int:
        """Numbers in all layers, the embedding and the output head."""
        return self.weights + (1 if self.tied else 2) * self.vocabulary * self.hidden

    def read_weights(self, tokens: int) -> int:
        """Numbers in all layers that a forward of so many tokens reads.

        Of experts, it reads those that get a token; with even routing that is a share of
        ``1 - (1 - active / count) ** tokens``.
        """
        experts = self.experts
        share = 1 - (1 - experts.active / experts.count) ** tokens if experts else 1.0
        return round(self._weights(share))

    def readout_operations(self, columns: int) -> int:
        """Operations of the output head for one row and `columns` entries of the vocabulary."""
        return 2 * self.hidden * columns

    @property
    def _dense_layers(self) -> int:
        return self.experts.dense_layers if self.experts else 0

    @property
    def _sparse_layers(self) -> int:
        return self.layers - self._dense_layers

    @property
    def _attention_operations(self) -> int:
        return self.kv_operations + 2 * 2 * self.heads * self.head_dim * self.hidden

    @property
    def _sparse_operations(self) -> int:
        """Operations of one token in the MLP of a layer that is none of `Experts.dense_layers`."""
        if self.experts is None:
            return self._mlp_operations(self.intermediate)
        always = self._mlp_operations(self.experts.shared_width)
        return always + self.routed_operations + 2 * self.hidden * self.experts.count

    def _mlp_operations(self, width: int) -> int:
        return 2 * 3 * self.hidden * width

    def _weights(self, share: float) -> float:
        """Numbers in all layers, counting only this share of each layer's routed experts."""
        active = self.body_operations / 2
        if self.experts is None:
            return active
        all_experts = 3 * self.hidden * self.experts.width * self.experts.count
        return active + self._sparse_layers * (share * all_experts - self.routed_operations / 2)

"""Sizes of a decoder, read from its `config.json`. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.sizing.layer_sizes import Experts, Latent, Recurrent, size_of

_UNCOUNTED = (
    "linear_attn_config",
    "conv_L_cache",
    "mamba_d_state",
    "ssm_state_size",
    "interleave_moe_layer_step",
    "global_head_dim",
    "per_layer_config",
    "swa_head_dim",
)
"""Settings of models that are not counted here: with recurrent layers, with two sizes of MLPs, as
Llama 4, or of heads, as Gemma 4."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a decoder with gated MLPs, and full attention in all layers that are not recurrent.

    Attributes:
        head_dim: size of a head's queries and keys.
        intermediate: size of a dense layer's MLP; 0 if there is none.
        experts: of the layers that have them; None for a dense model.
        tied: the output head has the weights of the embedding.
        latent: of latent attention, which has as many heads of K/V as of queries; None without.
        recurrent: of layers without attention, none of which is the last; None without.
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
    latent: Latent | None = None
    recurrent: Recurrent | None = None

    @classmethod
    def from_directory(cls, model: Path) -> Self:
        """Read the `config.json` of a Qwen-, Llama-, Mistral-, Mixtral- or DeepSeek-like model.

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
            return cls.of_config(json.loads(path.read_text()))
        except ConfigError as error:
            raise ConfigError(f"model {str(model)!r}: {error}") from error
        except ValueError as error:
            raise ConfigError(f"model {str(model)!r}: config.json is no JSON ({error}).") from error

    @classmethod
    def of_config(cls, config: dict[str, Any]) -> Self:
        """Read what a `config.json` has.

        Raises:
            ConfigError: it lacks a size, or is that of a model that cannot be counted.
        """
        try:
            return cls._read(config)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                "config.json is not that of a decoder that can be counted "
                f"({type(error).__name__}: {error}); name a Qwen-, Llama-, Mistral-, Mixtral- or "
                "DeepSeek-like model."
            ) from error

    @classmethod
    def _read(cls, config: dict[str, Any]) -> Self:
        whole, config = config, config.get("text_config") or config
        if uncounted := [name for name in _UNCOUNTED if config.get(name)]:
            raise ValueError(f"it has {uncounted[0]}")
        heads, latent = size_of(config, "num_attention_heads"), Latent.of_config(config)
        experts = Experts.of_config(config)
        has_dense = experts is None or experts.dense_layers > 0
        head_dim = config.get("head_dim") or config["hidden_size"] // heads
        if latent is not None:
            head_dim = size_of(config, "qk_nope_head_dim") + latent.rotated
        return cls(
            layers=size_of(config, "num_hidden_layers"),
            hidden=size_of(config, "hidden_size"),
            heads=heads,
            kv_heads=size_of({"num_key_value_heads": heads} | config, "num_key_value_heads"),
            head_dim=head_dim,
            intermediate=size_of(config, "intermediate_size") if has_dense else 0,
            vocabulary=size_of(config, "vocab_size"),
            experts=experts,
            tied=bool((whole | config).get("tie_word_embeddings", False)),
            latent=latent,
            recurrent=Recurrent.of_config(config),
        )

    @property
    def value_dim(self) -> int:
        """Size of a head's values."""
        return self.latent.value_dim if self.latent else self.head_dim

    @property
    def attention_layers(self) -> int:
        return self.layers - (self.recurrent.layers if self.recurrent else 0)

    @property
    def pair_tokens(self) -> float:
        """Operations of one attention pair in all layers, divided by those of one token."""
        return self.attention_layers * self.pair_operations / self.body_operations

    @property
    def kv_operations(self) -> int:
        """Operations of one layer's key and value projections for one token."""
        if self.latent is None:
            return 2 * 2 * self.kv_heads * self.head_dim * self.hidden
        rank, rotated = self.latent.rank, self.latent.rotated
        made = self.heads * (self.head_dim - rotated + self.value_dim)
        return 2 * (self.hidden * (rank + rotated) + rank * made)

    @property
    def layer_operations(self) -> int:
        """Operations of the last layer's linear maps for one token: QKV, output, gate, up, down."""
        return self._attention_operations + self._sparse_operations

    @property
    def body_operations(self) -> int:
        """Operations of the linear maps of all layers for one token."""
        dense = self._dense_layers * self._mlp_operations(self.intermediate)
        sparse = self._sparse_layers * self._sparse_operations
        attention = self.attention_layers * self._attention_operations
        return attention + self._recurrent_operations + dense + sparse

    @property
    def rule_operations(self) -> int:
        """Operations of all recurrent layers for one token beside their linear maps."""
        return self.recurrent.layers * self.recurrent.rule_operations if self.recurrent else 0

    @property
    def pair_operations(self) -> int:
        """Operations of one layer's attention for one pair of tokens: dot product and sum."""
        return 2 * self.heads * (self.head_dim + self.value_dim)

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
        queries, rank = self.heads * self.head_dim, self.latent.query_rank if self.latent else 0
        made = rank * (self.hidden + queries) if rank else self.hidden * queries
        made += self.hidden * queries if self.recurrent else 0  # the gate
        return self.kv_operations + 2 * (made + self.heads * self.value_dim * self.hidden)

    @property
    def _recurrent_operations(self) -> int:
        """Operations of the linear maps of all recurrent layers for one token."""
        own = self.recurrent
        return 2 * own.layers * own.weights(self.hidden) if own else 0

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

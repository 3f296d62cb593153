"""Sizes of experts, latent attention and recurrent layers, read from a `config.json`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_ACTIVE = ("num_experts_per_tok", "moe_k")
_SHARED = ("n_shared_experts", "moe_num_shared_experts")
_SHARED_WIDTH = ("shared_expert_intermediate_size", "shared_intermediate_size")
_DENSE = ("qwen3_5_text",)
"""Types of dense models whose configuration in SGLang has the experts of the class it inherits."""
_DENSE_AT_FIRST = ("first_k_dense_replace", "moe_layer_start_index")


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
        if config.get("model_type") in _DENSE:
            return None
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


@dataclass(frozen=True, slots=True)
class Latent:
    """Sizes of latent attention.

    Attributes:
        rank: of the latents of which keys and values of all heads are made.
        rotated: numbers of a key with positions, which all heads share.
        value_dim: size of a head's values.
        query_rank: of those of which queries are made; 0 if there are none.
    """

    rank: int
    rotated: int
    value_dim: int
    query_rank: int = 0

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Self | None:
        """Read them from a `config.json`; None for a model without."""
        if not config.get("kv_lora_rank"):
            return None
        names = "kv_lora_rank", "qk_rope_head_dim", "v_head_dim"
        rank, rotated, value_dim = (size_of(config, name) for name in names)
        return cls(rank, rotated, value_dim, config.get("q_lora_rank") or 0)


@dataclass(frozen=True, slots=True)
class Recurrent:
    """Sizes of layers with a gated delta rule in the place of attention, as in Qwen3.5.

    In such models, attention has a gate of the size of its queries.

    Attributes:
        layers: number of them.
        key_heads, key_dim: of queries and of keys.
        value_heads, value_dim: of values.
        conv_width: tokens that the convolution sees.
    """

    layers: int
    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    conv_width: int

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Self | None:
        """Read them from a `config.json`; None for a model without."""
        if not config.get("linear_num_value_heads"):
            return None
        if kinds := config.get("layer_types"):
            count = kinds.count("linear_attention")
        else:
            layers = config["num_hidden_layers"]
            count = layers - layers // config["full_attention_interval"]
        names = "num_key_heads", "key_head_dim", "num_value_heads", "value_head_dim"
        sizes = (size_of(config, f"linear_{name}") for name in (*names, "conv_kernel_dim"))
        return cls(count, *sizes)

    def weights(self, hidden: int) -> int:
        """Numbers of one layer, without its MLP and norms."""
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        made = 2 * (keys + values + self.value_heads)  # queries, keys, values, gates
        return hidden * (made + values) + self.conv_width * (2 * keys + values)

    @property
    def rule_operations(self) -> int:
        """Operations of one layer's rule for one token: three products with each head's state."""
        return 3 * 2 * self._state

    def state_bytes(self, sequences: int, chunks: int, number_bytes: int) -> int:
        """Least traffic of the states of all layers.

        A sequence begins with a float32 state. Each chunk of its tokens writes a state, and reads
        it again.
        """
        return self.layers * self._state * (4 * sequences + 2 * number_bytes * chunks)

    @property
    def _state(self) -> int:
        """Numbers of one layer's state."""
        return self.value_heads * self.value_dim * self.key_dim


def _number(config: Mapping[str, Any], names: Iterable[str]) -> int:
    """The value of a setting that model families name differently; 0 if there is none."""
    return next((int(config[name]) for name in names if config.get(name)), 0)


def size_of(config: Mapping[str, Any], name: str) -> int:
    """Read a size; raises KeyError if it is missing, ValueError if it is no whole number > 0."""
    size = config[name]
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"{name} is {size!r:.80}")
    return size

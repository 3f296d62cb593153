"""Sizes of experts and of latent attention, read from a model's `config.json`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_ACTIVE = ("num_experts_per_tok", "moe_k")
_SHARED = ("n_shared_experts", "moe_num_shared_experts")
_SHARED_WIDTH = ("shared_expert_intermediate_size", "shared_intermediate_size")
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


def _number(config: Mapping[str, Any], names: Iterable[str]) -> int:
    """The value of a setting that model families name differently; 0 if there is none."""
    return next((int(config[name]) for name in names if config.get(name)), 0)


def size_of(config: Mapping[str, Any], name: str) -> int:
    """Read a size; raises KeyError if it is missing, ValueError if it is no whole number > 0."""
    size = config[name]
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"{name} is {size!r:.80}")
    return size

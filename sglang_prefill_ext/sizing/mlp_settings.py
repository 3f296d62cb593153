"""Reads from a `config.json` what computes each token alone behind a layer's attention. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_prefill_ext.sizing.settings import Settings, first_of, number_of, size_of
from sglang_prefill_ext.sizing.sublayers import Experts, Mlp, Sublayer

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_ACTIVE = ("num_experts_per_tok", "moe_k", "top_k_experts")
_SHARED = ("n_shared_experts", "moe_num_shared_experts", "num_shared_experts")
_SHARED_WIDTH = ("shared_expert_intermediate_size", "shared_intermediate_size")
_SHARES_ONE = ("llama4_text",)
"""Types of models that have a shared expert like the others without saying so."""
_DENSE_AT_FIRST = ("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers")
_SPARSE_STEP = ("decoder_sparse_step", "interleave_moe_layer_step")
_DENSE = ("qwen3_5_text",)
"""Types of dense models whose configuration in SGLang has the experts of the class it inherits."""
_WITHOUT_GATE = (
    *("apertus", "arcee", "gpt_neox", "jais2", "nanochat", "nemotron", "nemotron_h", "persimmon"),
    *("phi", "starcoder2"),
)
"""Types of models whose MLPs and experts have two maps."""


def mlps_of(config: Settings, kind: str, number: int, *, shares: bool) -> Iterator[Sublayer]:
    """MLP and experts of a layer.

    Args:
        kind: see `layer_kinds`.
        shares: the layer has keys and values of an earlier one; it may have a wider MLP.
    """
    experts = experts_of(config) if kind != "mlp" and _is_sparse(config, number) else None
    if experts is not None:
        yield experts
    if experts is None or config.get("enable_moe_block"):
        wider = 2 if shares and config.get("use_double_wide_mlp") else 1
        yield Mlp(size_of(config, "hidden_size"), wider * _width(config), _maps(config))


def experts_of(config: Settings) -> Experts | None:
    """The experts of a layer that has some; None for a dense model."""
    if config.get("model_type") in _DENSE:
        return None
    count, active = number_of(config, *_EXPERTS), number_of(config, *_ACTIVE)
    if not count:
        return None
    if not active:
        raise ValueError(f"it does not say how many of its {count} experts compute a token")
    if active > count:
        raise ValueError(f"{active} of its {count} experts compute a token")
    width = first_of(config, "moe_intermediate_size", "intermediate_size")
    shared = number_of(config, *_SHARED) + (config.get("model_type") in _SHARES_ONE)
    each = number_of(config, "moe_shared_expert_intermediate_size") or width
    shared_width = number_of(config, *_SHARED_WIDTH) + shared * each
    hidden = size_of(config, "hidden_size")
    return Experts(hidden, count, active, width, shared_width, _maps(config))


def _is_sparse(config: Settings, number: int) -> bool:
    if kinds := config.get("mlp_layer_types"):
        return bool(kinds[number] == "sparse")
    if (number + 1) % (number_of(config, *_SPARSE_STEP) or 1):
        return False
    if isinstance(sparse := config.get("moe_layer_freq"), list):
        return bool(sparse[number])
    if number in (config.get("mlp_only_layers") or ()):
        return False
    return number >= number_of(config, *_DENSE_AT_FIRST)


def _width(config: Settings) -> int:
    """Intermediate size of an MLP."""
    if shared := number_of(config, "shared_intermediate_size"):  # Granite 4, if it is dense
        return shared
    if config.get("model_type") != "lfm2":
        return first_of(config, "intermediate_size_mlp", "intermediate_size")  # the first: Llama 4
    width = first_of(config, "block_ff_dim", "intermediate_size")
    if not config.get("block_auto_adjust_ff_dim", True):
        return width
    factor, multiple = config.get("block_ffn_dim_multiplier"), size_of(config, "block_multiple_of")
    width = 2 * width // 3
    return width if factor is None else -(-int(factor * width) // multiple) * multiple


def _maps(config: Settings) -> int:
    return 2 if config.get("model_type") in _WITHOUT_GATE else 3

"""Reads from a `config.json` what the layers of a decoder consist of. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_prefill_ext.sizing.mixers import Attention, LatentAttention
from sglang_prefill_ext.sizing.mlp_settings import mlps_of
from sglang_prefill_ext.sizing.recurrences import (
    DeltaRule,
    Recurrence,
    ShortConvolution,
    StateSpace,
)
from sglang_prefill_ext.sizing.settings import Settings, first_of, number_of, size_of
from sglang_prefill_ext.sizing.sublayers import LayerEmbedding, Sublayer

_KINDS = {"attention": "full_attention", "mamba": "linear_attention", "short_conv": "conv"}
"""Older names of kinds of layers."""
_LETTERS = {"M": "linear_attention", "*": "full_attention", "E": "moe", "-": "mlp"}
"""Kinds of layers as Nemotron-H abbreviates them."""
_PATTERNS = {"gemma2": 2, "gemma3_text": 6, "gemma4_text": 6, "llama4_text": 4}
"""Of how many layers the last one has no window, in models that need not say so."""
_WINDOWS = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
"""Kinds of attention that see part of a prompt, and where its size is said."""


def sublayers_of(config: Settings) -> tuple[Sublayer, ...]:
    """The steps of all layers, in the order in which they run.

    Raises:
        KeyError: a size is missing.
        ValueError: a layer is of a kind that cannot be counted.
    """
    kinds = layer_kinds(config)
    return tuple(each for number in range(len(kinds)) for each in _layer(config, kinds, number))


def layer_kinds(config: Settings) -> list[str]:
    """What each layer mixes tokens by, in the words of Transformers."""
    if letters := config.get("hybrid_override_pattern"):
        return [_LETTERS[letter] for letter in letters]
    if (slides := config.get("hybrid_layer_pattern")) is not None:  # MiMo V2
        return ["sliding_attention" if each else "full_attention" for each in slides]
    named = config.get("layers_block_type") or config.get("layer_types")
    kinds = [_KINDS.get(kind, kind) for kind in named] if named else _unnamed_kinds(config)
    if len(kinds) != config.get("num_hidden_layers", len(kinds)):
        raise ValueError(f"it names the kinds of {len(kinds)} layers")
    return kinds


def _unnamed_kinds(config: Settings) -> list[str]:
    layers, model = range(size_of(config, "num_hidden_layers")), config.get("model_type")
    if model == "falcon_h1":
        return ["hybrid" for _ in layers]
    if (attends := config.get("full_attn_idxs")) is not None:
        return ["full_attention" if each in attends else "conv" for each in layers]
    kind, every = "linear_attention", config.get("full_attention_interval")
    if not config.get("linear_num_value_heads"):
        kind = "chunked_attention" if model == "llama4_text" else "sliding_attention"
        every = config.get("sliding_window_pattern") or _PATTERNS.get(str(model))
    if not every:
        return ["full_attention" for _ in layers]
    return [kind if (each + 1) % every else "full_attention" for each in layers]


def _layer(config: Settings, kinds: list[str], number: int) -> Iterator[Sublayer]:
    kind = kinds[number]
    if kind in ("linear_attention", "hybrid"):
        yield _recurrence(config)
    if kind in ("full_attention", *_WINDOWS, "hybrid"):
        yield _attention(config, kinds, number)
    elif kind == "conv":
        width = size_of(config, "conv_L_cache")
        yield ShortConvolution(size_of(config, "hidden_size"), width)
    elif kind not in ("linear_attention", "moe", "mlp"):
        raise ValueError(f"its layer {number} is of the kind {kind!r:.40}")
    # In Nemotron-H, MLPs and experts are layers of their own.
    if kind in ("moe", "mlp") or config.get("model_type") != "nemotron_h":
        yield from mlps_of(config, kind, number, shares=_shares(config, kinds, number))
        if size := number_of(config, "hidden_size_per_layer_input"):
            yield LayerEmbedding(size_of(config, "hidden_size"), size)


def _recurrence(config: Settings) -> Recurrence:
    hidden = size_of(config, "hidden_size")
    if config.get("linear_num_value_heads"):
        names = "num_key_heads", "key_head_dim", "num_value_heads", "value_head_dim"
        sizes = (size_of(config, f"linear_{name}") for name in (*names, "conv_kernel_dim"))
        return DeltaRule(hidden, *sizes)
    heads = first_of(config, "mamba_n_heads", "mamba_num_heads")
    return StateSpace(
        hidden,
        heads=heads,
        head_dim=_state_space_head(config, heads),
        groups=first_of(config, "mamba_n_groups", "n_groups"),
        state_size=first_of(config, "mamba_d_state", "ssm_state_size"),
        conv_width=first_of(config, "mamba_d_conv", "conv_kernel"),
        chunk=first_of(config, "mamba_chunk_size", "chunk_size"),
    )


def _state_space_head(config: Settings, heads: int) -> int:
    """Size of a head, which the number of all channels may decide."""
    if config.get("mamba_d_head", "auto") != "auto":
        return size_of(config, "mamba_d_head")
    if head_dim := number_of(config, "mamba_head_dim"):
        return head_dim
    channels = config.get("mamba_d_ssm") or config["mamba_expand"] * config["hidden_size"]
    return int(channels) // heads


def _attention(config: Settings, kinds: list[str], number: int) -> Attention:
    window = _WINDOWS.get(kinds[number])
    slides = window is not None
    own = config | _own_sizes(config, number, slides=slides)
    hidden, heads = size_of(own, "hidden_size"), size_of(own, "num_attention_heads")
    if config.get("kv_lora_rank"):
        return _latent(config, hidden, heads)
    head_dim, values = number_of(own, "head_dim") or hidden // heads, number_of(own, "v_head_dim")
    shares, same = _shares(config, kinds, number), config.get("attention_k_eq_v") and not slides
    return Attention(
        hidden,
        heads,
        size_of({"num_key_value_heads": heads} | own, "num_key_value_heads"),
        head_dim,
        window=None if window is None else number_of(config, window) or None,
        kv_maps=0 if shares else 1 if same else 2,
        gate=_gate(config, heads, head_dim),
        values=0 if values in (head_dim, config.get("head_dim")) else values,
    )


def _latent(config: Settings, hidden: int, heads: int) -> LatentAttention:
    names = "kv_lora_rank", "qk_rope_head_dim", "v_head_dim", "qk_nope_head_dim"
    rank, rotated, values, plain = (size_of(config, name) for name in names)
    return LatentAttention(
        *(hidden, heads, heads, plain + rotated),
        values=values,
        rank=rank,
        rotated=rotated,
        query_rank=number_of(config, "q_lora_rank"),
    )


def _own_sizes(config: Settings, number: int, *, slides: bool) -> Settings:
    """Sizes of a layer that differ from those of the model.

    Gemma 4 says those of its layers without a window, or of single layers. SGLang turns them into
    those of the model, and says what layers with a window have instead.
    """
    by_layer = config.get("per_layer_config") or {}  # numbers; "05" and the like in a file
    own: Settings = next((dict(by_layer[each]) for each in by_layer if int(each) == number), {})
    if odd := own.keys() - {"head_dim", "num_key_value_heads"}:
        raise ValueError(f"its layer {number} has its own {min(odd)}")
    if slides:
        names = "head_dim", "v_head_dim", "num_attention_heads", "num_key_value_heads"
        of_kind = {name: config.get(f"swa_{name}") for name in names}
    else:
        of_kind = {"head_dim": config.get("global_head_dim")}
        if config.get("attention_k_eq_v"):
            of_kind["num_key_value_heads"] = config.get("num_global_key_value_heads")
    if heads := config.get("num_attention_heads_per_layer"):
        of_kind["num_attention_heads"] = heads[number]
    return {name: size for name, size in of_kind.items() if size} | own


def _shares(config: Settings, kinds: list[str], number: int) -> bool:
    """Whether a layer has keys and values of an earlier one."""
    return number >= len(kinds) - (config.get("num_kv_shared_layers") or 0)


def _gate(config: Settings, heads: int, head_dim: int) -> int:
    """Outputs of the map that weighs the attention's outputs."""
    if config.get("model_type") == "laguna":
        return heads
    gated = config.get("linear_num_value_heads") or config.get("model_type") == "afmoe"
    return heads * head_dim if gated else 0

"""Shapes of existing models, and requests for them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from sglang_prefill_ext.sizing.device import DEVICES
from sglang_prefill_ext.sizing.forward import Serving
from sglang_prefill_ext.sizing.model import ModelShape
from sglang_prefill_ext.sizing.shape import Shape

SIZES: dict[str, Any] = {
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 704,
    "vocab_size": 8000,
}
DELTA: dict[str, Any] = {
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
"""Settings of three layers with a gated delta rule."""


def decoder(
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    intermediate: int,
    vocabulary: int,
    **more: Any,
) -> ModelShape:
    """A decoder of equal layers, by what else its `config.json` says."""
    sizes = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": intermediate,
        "vocab_size": vocabulary,
    }
    return ModelShape.of_config(sizes | more)


def experts(count: int, active: int, width: int) -> dict[str, Any]:
    """Settings of experts in all layers."""
    names = "num_experts", "num_experts_per_tok", "moe_intermediate_size"
    return dict(zip(names, (count, active, width), strict=True))


DENSE = {
    "0.6B": decoder(28, 1024, 16, 8, 128, 3072, 151_936, tie_word_embeddings=True),
    "1.7B": decoder(28, 2048, 16, 8, 128, 6144, 151_936, tie_word_embeddings=True),
    "4B": decoder(36, 2560, 32, 8, 128, 9728, 151_936, tie_word_embeddings=True),
    "8B": decoder(36, 4096, 32, 8, 128, 12_288, 151_936),
}
"""Qwen3's."""

SPARSE = decoder(48, 2048, 32, 4, 128, 6144, 151_936, **experts(128, 8, 768))
"""Qwen3-30B-A3B."""

servings = st.builds(
    Serving, st.sampled_from([*DENSE.values(), SPARSE]), st.sampled_from(list(DEVICES.values()))
)
shapes = st.builds(Shape, st.integers(1, 3000), st.integers(0, 600), st.integers(1, 200))

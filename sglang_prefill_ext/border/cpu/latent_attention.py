"""Latent attention on the CPU reference platform; apart from it, as it imports much of SGLang."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.models.deepseek_common.attention_backend_handler import _dispatch_mla_subtype


def over_latents(original: Callable[..., Any], attention: Any, batch: Any) -> Any:
    """AROUND `DeepseekV2AttentionMLA.dispatch_attn_forward_method`: absorb keys and values.

    Torch's backend takes them from the KV pool, and that keeps latents.
    """
    method = original(attention, batch)
    if attention.current_attention_backend != "torch_native":
        return method
    return _dispatch_mla_subtype(attention, batch)

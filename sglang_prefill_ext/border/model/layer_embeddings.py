"""Embeddings that Gemma 4 E2B and E4B look up for every layer, beside those of the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sglang_prefill_ext.border.model.capability import text_part


def look_media_up_as_padding(model: Any) -> bool:
    """Change the ids of tokens that stand for pictures or sounds before they are looked up.

    In a text they are names without a picture. SGLang's whole model changes them, too, before it
    calls the part that packed forwards run.

    Returns:
        Whether the model looks tokens up for every layer; most do not.
    """
    layers = getattr(text_part(model), "model", None)
    table = getattr(layers, "embed_tokens_per_layer", None)
    if table is None:
        return False
    config = model.config
    media = [getattr(config, f"{kind}_token_id") for kind in ("image", "video", "audio")]
    padding: int = config.get_text_config().pad_token_id

    def change(_module: object, inputs: tuple[Tensor]) -> Tensor:
        (ids,) = inputs
        for token in media:
            ids = torch.where(ids == token, padding, ids)
        return ids

    table.register_forward_pre_hook(change)
    return True

"""Capped logits without a GPU, which SGLang's platforms of its own alone have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def capped_on_host(
    original: Callable[..., Tensor], processor: Any, hidden: Tensor, *args: Any, **kwargs: Any
) -> Tensor:
    """AROUND `LogitsProcessor._get_logits`: the cap of Gemma 2 by torch instead of Triton."""
    cap: float | None = processor.final_logit_softcapping
    if not cap:
        return original(processor, hidden, *args, **kwargs)
    processor.final_logit_softcapping = None
    try:
        logits = original(processor, hidden, *args, **kwargs)
    finally:
        processor.final_logit_softcapping = cap
    return cap * torch.tanh(logits / cap)

"""What SGLang has on a GPU, or on platforms of its own, alone: capped logits, and LoRA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


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


class _Pageable(TorchFunctionMode):
    """Inside, torch leaves host tensors where they are, whatever it is asked for.

    There is no pinned memory without a CUDA device.
    """

    def __torch_function__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.pin_memory:
            return args[0]
        return func(*args, **{k: v for k, v in (kwargs or {}).items() if k != "pin_memory"})


def without_pinning(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """AROUND `LoRAManager.init_state` and `TorchNativeLoRABackend.prepare_lora_batch`."""
    with _Pageable():
        return original(*args, **kwargs)

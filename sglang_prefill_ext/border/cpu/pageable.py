"""LoRA without pinned memory, which there is none of without a CUDA device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode


class _Pageable(TorchFunctionMode):
    """Inside, torch leaves host tensors where they are, whatever it is asked for."""

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

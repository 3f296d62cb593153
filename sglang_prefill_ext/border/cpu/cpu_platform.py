"""The CPU reference platform, an out-of-tree platform of SGLang, and hooks for what it needs there.

SGLang supports capped logits and LoRA only on GPUs or on its own platforms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt import platforms
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.interface import PlatformEnum, SRTPlatform
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity

_STOCK_PROBES = (
    "_is_cpu_available",  # the in-tree CPU engine, chosen by SGLANG_USE_CPU_ENGINE=1
    "_is_sail_available",
    "_is_cuda_available",
    "_is_rocm_available",
    "_is_npu_available",
    "_is_xpu_available",
    "_is_musa_available",
    "_is_mps_available",
)


def stock_finds_a_platform() -> bool:
    """Whether SGLang's own discovery would choose a platform without any plugin."""
    return any(getattr(platforms, probe)() for probe in _STOCK_PROBES)


class CpuReferencePlatform(CpuDeviceMixin, SRTPlatform):  # type: ignore[misc]
    """Torch-native execution on the CPU: slow, portable, numerically a reference."""

    _enum = PlatformEnum.OOT

    def get_default_attention_backend(self) -> str:
        return "torch_native"

    def get_torch_profiler_activity_str(self) -> str:
        return "CPU"

    def get_torch_profiler_activity(self) -> ProfilerActivity:
        return ProfilerActivity.CPU


def capped_on_host(_original: Callable[..., None], logits: Tensor, cap: float) -> None:
    """AROUND `softcap_inplace_logits`: the cap of Gemma 2 by torch instead of Triton."""
    logits.div_(cap).tanh_().mul_(cap)


class _Pageable(TorchFunctionMode):
    """Within this mode, torch ignores requests for pinned memory, which needs a CUDA device."""

    def __torch_function__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.pin_memory:
            return args[0]
        return func(*args, **{k: v for k, v in (kwargs or {}).items() if k != "pin_memory"})


def without_pinning(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """AROUND `LoRAManager.init_state` and `TorchNativeLoRABackend.prepare_lora_batch`.

    Run them without pinned memory.
    """
    with _Pageable():
        return original(*args, **kwargs)

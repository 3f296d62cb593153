"""The CPU reference platform, as an SGLang out-of-tree platform class."""

from __future__ import annotations

from typing import Any

from sglang.srt import platforms
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.interface import PlatformCapabilities, PlatformEnum, SRTPlatform
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
    device_name = "cpu"
    device_type = "cpu"
    capabilities = PlatformCapabilities()

    def get_default_attention_backend(self) -> str:
        return "torch_native"

    def is_pin_memory_available(self, device: Any = None) -> bool:
        return False

    def get_torch_profiler_activity_str(self) -> str:
        return "CPU"

    def get_torch_profiler_activity(self) -> ProfilerActivity:
        return ProfilerActivity.CPU

"""Entry point of the CPU reference platform (group ``sglang.srt.platforms``).

Stock SGLang needs an accelerator, or its own CPU engine with compiled kernels. On a machine
with neither, this platform lets the whole real server run on torch's CPU kernels, which is
what the tests and the demo do. SGLang asks for it whether or not our flag is given.
"""

from __future__ import annotations


def activate() -> str | None:
    """Return the platform's qualified name, or None wherever stock finds a platform itself."""
    from sglang_prefill_ext.border.cpu import cpu_platform

    if cpu_platform.stock_finds_a_platform():
        return None
    return "sglang_prefill_ext.border.cpu.cpu_platform:CpuReferencePlatform"

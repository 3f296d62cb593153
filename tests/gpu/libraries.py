"""Stand-ins for the kernels of a GPU: they launch nothing, and return tensors without numbers."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

LAUNCHED: Counter[str] = Counter()
"""How often kernels were launched, by name."""

COMPILED: Counter[str] = Counter()
"""How many forms of Triton kernels would have been compiled, by their modules."""


class _Driver:
    """Triton's driver of an H100."""

    def get_device_capability(self, _device: int = 0) -> tuple[int, int]:
        return 9, 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)


class _Compiled:
    """A form of a Triton kernel."""

    function = packed_metadata = None

    def __init__(self, name: str) -> None:
        self._name = name

    def launch_metadata(self, *_: Any) -> None: ...

    def run(self, *_: Any) -> None:
        LAUNCHED[self._name] += 1

    def __getitem__(self, _grid: Any) -> Callable[..., None]:
        return self.run


def _compile(kernel: Any, form: Any, *_: Any) -> _Compiled:
    COMPILED[kernel.fn.__module__] += 1
    compiled, device = _Compiled(kernel.fn.__name__), 0
    kernel.device_caches[device][0][form] = compiled
    return compiled


class _Kernel:
    """A function that writes into its arguments, or returns what `RETURNED` says."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self.default = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        LAUNCHED[self.__name__] += 1
        returned = RETURNED.get(self.__name__)
        return None if returned is None else returned(*args, **kwargs)


class _Kernels:
    """`torch.ops.sgl_kernel`."""

    def __bool__(self) -> bool:
        return False  # else SGLang tells torch the shapes of their results

    def __getattr__(self, name: str) -> _Kernel:
        if name.startswith("__"):
            raise AttributeError(name)
        kernel = _Kernel(name)
        setattr(self, name, kernel)
        return kernel


def _attended(q: Tensor, *_args: Any, **_kwargs: Any) -> list[Tensor]:
    tokens, heads, _ = q.shape
    return [torch.empty_like(q), q.new_empty(heads, tokens, dtype=torch.float32)]


def _multiplied(
    a: Tensor, b: Tensor, _a_scales: Tensor, _b_scales: Tensor, out_dtype: torch.dtype, *_args: Any
) -> Tensor:
    return a.new_empty(len(a), b.shape[1], dtype=out_dtype)


RETURNED: dict[str, Any] = {
    "fwd": _attended,
    "fp8_scaled_mm": _multiplied,
    "top_k_top_p_sampling_from_probs": lambda probs, *_args, **_kwargs: probs.new_zeros(
        len(probs), dtype=torch.int32
    ),
}
"""Results of the kernels that return any."""

WITHIN = {
    "flashinfer.norm": (
        "_rmsnorm_impl",
        "_gemma_rmsnorm_impl",
        "fused_add_rmsnorm_cute",
    ),
    "flashinfer.sampling": ("top_k_top_p_sampling_from_probs",),
    "sglang.srt.model_loader.loader": ("initialize_dummy_weights",),
}
"""Functions that call a kernel of a library or a compiler of its own."""


def _of_host(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Make a process group that communicates through the host."""
    kwargs.pop("device_id", None)
    return make(*args, **kwargs | {"backend": "gloo"})


def stand_in_of_libraries() -> None:
    """Replace the kernels of SGLang and Triton's driver, before SGLang is imported."""
    loader: Any = ModuleType("sgl_kernel.load_utils")
    loader._load_architecture_specific_ops = loader._preload_cuda_library = lambda: None
    sys.modules[loader.__name__] = loader
    for name in ("flash_ops", "spatial_ops", "flashmla_ops"):
        sys.modules[f"sgl_kernel.{name}"] = ModuleType(name)
    torch.ops.sgl_kernel = _Kernels()
    for name in ("init_process_group", "new_group"):
        setattr(dist, name, partial(_of_host, getattr(dist, name)))
    custom_op = importlib.import_module("sglang.srt.utils.custom_op")
    # Else torch would ask an operation of SGLang for its result's shape, and not run it.
    custom_op.CustomOpWrapper.real_impl = property(lambda self: self.op_func)
    compiler = importlib.import_module("sglang.kernels.jit.utils")
    compiler.load_jit = lambda *_args, **_kwargs: _Kernels()  # compiles C++ for the GPU
    triton.runtime.driver.set_active(_Driver())  # type: ignore[arg-type]
    JITFunction._do_compile = _compile
    Autotuner.run = lambda self, *_args, **_kwargs: LAUNCHED.update([self.base_fn.__name__])


def stand_in_within_libraries() -> None:
    """Replace other kernels, after SGLang is imported."""
    for module, names in WITHIN.items():
        for name in names:
            assert hasattr(importlib.import_module(module), name), (module, name)
            setattr(importlib.import_module(module), name, _Kernel(name))
    # Its own graphs would be of decode steps only.
    runner: Any = importlib.import_module("sglang.srt.model_executor.model_runner").ModelRunner
    capture = runner.init_cuda_graphs
    runner.init_cuda_graphs = lambda self, **_: capture(self, capture_decode_cuda_graph=False)

"""Pretends an H100: tensors on it have a shape and a dtype, but no numbers.

`torch.cuda` says what it would say on such a machine. Tensors of the host stay real. Whatever would
make the host wait for the GPU is noted, and gives zeros.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import Module, Parameter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

GPU = torch.device("cuda", 0)
MEMORY, FREE = 80 << 30, 70 << 30
PROPERTIES = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3",
    total_memory=MEMORY,
    multi_processor_count=132,
    major=9,
    minor=0,
    is_integrated=False,
    shared_memory_per_block_optin=227 << 10,
)
QUIET = (
    *("_lazy_init", "_exchange_device", "_maybe_exchange_device", "set_device", "current_device"),
    *("set_stream", "manual_seed", "manual_seed_all", "empty_cache", "ipc_collect"),
    *("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"),
    "reset_peak_memory_stats",
)
"""Functions that do nothing, and return 0."""
aten = torch.ops.aten
TELLING: dict[Any, Callable[..., Any]] = {
    aten._local_scalar_dense.default: lambda tensor: torch.zeros((), dtype=tensor.dtype).item(),
    aten.equal.default: lambda *_: True,
    aten.allclose.default: lambda *_args, **_kwargs: True,
}
"""Operations that tell the host something about numbers on the GPU, and what they tell."""
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}


class Stream:
    """A stream or an event, on which all work has ended."""

    cuda_stream = stream_id = device_index = 0
    device = GPU

    def __init__(self, *_args: object, **_kwargs: object) -> None: ...

    def wait_stream(self, _other: object) -> None: ...

    def wait_event(self, _event: object) -> None: ...

    def wait(self, _stream: object = None) -> None: ...

    def record(self, _stream: object = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


class Graph:
    """A CUDA graph; a replay does nothing."""

    def capture_begin(self, **_: object) -> None: ...

    def capture_end(self) -> None: ...

    def replay(self) -> None: ...


class PretendedGpu(TorchDispatchMode):
    """Runs operations of tensors on the GPU without numbers, and all others as usual.

    Attributes:
        waits: what would have made the host wait for the GPU, and how often.
        capturing: whether a CUDA graph is being captured, in which that is an error.
    """

    def __init__(self) -> None:
        super().__init__()
        self._numberless = FakeTensorMode(allow_non_fake_inputs=True)
        self.waits: Counter[str] = Counter()
        self.capturing = False
        self._before: list[bool] = []

    def __enter__(self) -> PretendedGpu:
        torch._C._ensureCUDADeviceGuardSet()
        self._before.append(torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor` begins on the host
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch._C._set_only_lift_cpu_tensors(self._before.pop())

    def note(self, what: object) -> None:
        """Note something to wait for, by the function of this package that it happens in."""
        frames = traceback.extract_stack()
        ours = [each.name for each in frames if "/sglang_prefill_ext/" in each.filename]
        where = f"{what} in {ours[-1]}" if ours else str(what)
        if self.capturing:
            raise RuntimeError(f"A graph is captured: {where}")
        self.waits[where] += 1

    def __torch_dispatch__(
        self, function: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled() and function.namespace == "aten":
            with self:  # here torch leaves it to a mode to divide an operation into its parts
                result = function.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        of_host = [each for each in tensors if not isinstance(each, FakeTensor)]
        to = torch.device(kwargs.get("device") or "cpu").type
        if len(of_host) == len(tensors) and to == "cpu":
            pinned = {"pin_memory": False} if kwargs.get("pin_memory") else {}
            return function(*args, **kwargs | pinned)
        return self._without_numbers(function, args, kwargs, of_host)

    def _without_numbers(
        self, function: Any, args: Any, kwargs: dict[str, Any], of_host: list[Tensor]
    ) -> Any:
        if function in TELLING:
            if args[0].numel():  # else torch looks at shapes only
                self.note(function)
            return TELLING[function](*args, **kwargs)
        if function is aten.copy_.default:
            return self._copied(*args, **kwargs)
        if function is aten._to_copy.default:
            return self._moved(*args, **kwargs)
        if function in INDEXING and any(each.dim() for each in of_host):
            self.note("an index on the host")
        with self._numberless:
            result = function(*args, **kwargs)
        return tree_map(_real_on_host, result)

    def _moved(self, source: Tensor, *, device: Any = None, **kwargs: Any) -> Tensor:
        from_host = not isinstance(source, FakeTensor)
        to_host = torch.device(device or source.device).type == "cpu"
        if (from_host or to_host) and (self.capturing or not kwargs.get("non_blocking")):
            self.note("a copy to the host" if to_host else "a copy to the GPU")
        with self._numberless:
            if from_host:
                kind = kwargs.get("dtype") or source.dtype
                return torch.empty(source.shape, dtype=kind, device=device)
            result: Tensor = aten._to_copy.default(source, device=device, **kwargs)
        return _real_on_host(result)  # type: ignore[no-any-return]

    def _copied(self, into: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        on_gpu = [isinstance(each, FakeTensor) for each in (into, source)]
        if any(on_gpu) and not all(on_gpu) and (self.capturing or not non_blocking):
            self.note("a copy")
        if not on_gpu[0]:
            return into.zero_()
        with self._numberless:
            return aten.copy_.default(into, source)  # type: ignore[no-any-return]


def _real_on_host(value: Any) -> Any:
    if isinstance(value, FakeTensor) and value.device.type == "cpu":
        return torch.zeros(value.shape, dtype=value.dtype)
    return value


def pretend_gpu(change: Callable[[Any, str, Any], None] = setattr) -> PretendedGpu:
    """Make torch tell of an H100, before anything asks for one; returns the mode to enter.

    Args:
        change: sets an attribute.
    """
    mode, stream = PretendedGpu(), Stream()

    def nothing(*_args: object, **_kwargs: object) -> int:
        return 0

    @contextmanager
    def capture(*_: object) -> Iterator[None]:
        mode.capturing = True
        try:
            yield
        finally:
            mode.capturing = False

    told: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "get_device_capability": lambda *_: (9, 0),
        "get_device_properties": lambda *_: PROPERTIES,
        "get_device_name": lambda *_: PROPERTIES.name,
        "mem_get_info": lambda *_: (FREE, MEMORY),
        "memory_stats": lambda *_args, **_kwargs: {},
        "is_current_stream_capturing": lambda: mode.capturing,
        "Stream": Stream,
        "Event": Stream,
        "StreamContext": nullcontext,
        "stream": nullcontext,
        "current_stream": lambda *_: stream,
        "default_stream": lambda *_: stream,
        "CUDAGraph": Graph,
        "graph": capture,
        "graph_pool_handle": nothing,
        "synchronize": lambda *_: mode.note("torch.cuda.synchronize"),
    }
    for name, what in (told | dict.fromkeys(QUIET, nothing)).items():
        change(torch.cuda, name, what)
    change(torch, "Stream", Stream)
    change(torch, "Event", Stream)
    change(torch, "tensor", _unpinned(torch.tensor))
    change(Tensor, "pin_memory", lambda self, *_: self)
    change(Tensor, "is_pinned", lambda *_: True)
    change(Tensor, "record_stream", nothing)
    change(Module, "float", _in_float32)
    return mode


def _in_float32(module: Module) -> Module:
    """`Module.float`, which swaps tensors; those without numbers cannot be swapped."""
    for part in module.modules():
        for name, weight in list(part.named_parameters(recurse=False)):
            setattr(part, name, Parameter(weight.float(), requires_grad=False))
    return module


def _unpinned(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args, pin_memory=False, **kwargs: make(*args, **kwargs)

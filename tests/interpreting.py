"""Makes Triton's interpreter faster, which spends most of its time beside the arithmetic.

It replaces the operations of the language at every call of a function, derives types anew for each
value, and computes all sums of integers once more for a check that it does not make. Here each is
done once. What an operation computes, and which operands it refuses, remains.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import triton.language.core as core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

_replace = interpreter._patch_lang
_np_dtype = interpreter._get_np_dtype
_unwrap = core._unwrap_if_constexpr
_broadcast_values = TritonSemantic.broadcast_impl_value
_checked_operands = TritonSemantic.binary_op_type_checking_impl
_init_block_type = core.block_type.__init__
_scalar_constant = TritonSemantic.scalar_constant
_semantic = interpreter.interpreter_semantic

_replaced_for: set[Callable[..., Any]] = set()
"""Functions whose operations have been replaced; they stay so, as all kernels are interpreted."""
_NOT_CONSTEXPR = {int, float, bool, str, type(None), core.tensor, core.dtype, core.block_type}
_block_types: dict[Any, Any] = {}
_constants: dict[Any, Any] = {}
_numbers: dict[Any, Any] = {}


class _NothingToRestore:
    def restore(self) -> None:
        """At the end of a launch."""


def _replace_once(kernel: Callable[..., Any]) -> _NothingToRestore:
    if kernel not in _replaced_for:
        _replace(kernel)
        _replaced_for.add(kernel)
    return _NothingToRestore()


def _replace_operation(of: Any, name: str, operation: Any, _builder: Any, scope: Any) -> None:
    operation = getattr(operation, "__wrapped__", operation)

    @wraps(operation)
    def interpreted(*args: Any, **options: Any) -> Any:
        options["_semantic"] = _semantic
        return operation(*args, **options)

    interpreted.__dict__.pop(core.TRITON_BUILTIN, None)  # else it would be replaced again
    scope.set_attr(of, name, interpreted)


def _call(self: Any, *args: Any, **options: Any) -> Any:
    _replace_once(self.fn)
    try:
        return self.rewrite()(*args, **options)
    except Exception as error:
        raise interpreter.InterpreterError(repr(error)) from error


def _unwrapped(value: Any) -> Any:
    kind = type(value)
    if kind is core.constexpr:
        return value.value
    if kind in _NOT_CONSTEXPR:
        return value
    return _unwrap(value)


def _new_block_type(cls: type, element_type: Any, shape: Any) -> Any:
    """One object for each type, so that identity tells that types are equal."""
    shape = shape.values if type(shape) is core.tuple else _unwrapped(shape)
    sizes = tuple(map(_unwrapped, shape))
    key = element_type.name, getattr(element_type, "address_space", 0), sizes
    if key not in _block_types:
        made = object.__new__(cls)
        _init_block_type(made, element_type, list(sizes))
        made.sizes = sizes
        _block_types[key] = made
    return _block_types[key]


def _init_tensor(self: Any, handle: Any, kind: Any) -> None:
    try:
        self.shape, self.numel, self.dtype = kind.of_tensors
    except AttributeError:
        sizes = list(kind.shape) if kind.is_block() else []
        shape = core.tuple([core.constexpr(size) for size in sizes])
        kind.of_tensors = shape, core.constexpr(math.prod(sizes)), kind.scalar
        self.shape, self.numel, self.dtype = kind.of_tensors
    self.handle, self.type = handle, kind


def _np_dtype_once(kind: Any) -> Any:
    try:
        return kind.of_numpy
    except AttributeError:
        kind.of_numpy = _np_dtype(kind)
        return kind.of_numpy


def _operands(self: Any, left: Any, right: Any, *args: Any, **options: Any) -> Any:
    """Operands of one type, and pointers and offsets, are only broadcast, unless they are divided.

    What becomes of a number beside a tensor depends on the tensor's type alone.
    """
    if type(left) is not core.tensor:
        return _checked_operands(self, left, right, *args, **options)
    if type(right) in (int, float, bool):
        key = left.type.name, repr(right), args, *options.items()  # -0.0 equals 0.0
        if key not in _numbers:
            kept, number = _checked_operands(self, left, right, *args, **options)
            if kept is not left:
                return kept, number
            _numbers[key] = number
        return left, _numbers[key]
    plain = left.dtype.name == right.dtype.name and not (left.dtype.is_ptr() or args or options)
    if plain or (args == (True, True) and left.dtype.is_ptr() and right.dtype.is_int()):
        return _broadcast(self, left, right)
    return _checked_operands(self, left, right, *args, **options)


def _of_sizes(block: Any, sizes: tuple[int, ...]) -> Any:
    if block.type.sizes == sizes:
        return block
    kind = core.block_type(block.dtype, sizes)
    return core.tensor(_semantic.builder.create_broadcast(block.handle, sizes), kind)


def _broadcast(self: Any, left: Any, right: Any) -> Any:
    """Blocks of one rank; all else, and what does not fit, is left to the original."""
    one, other = (getattr(each.type, "sizes", ()) for each in (left, right))
    if one == other:
        return left, right
    if len(one) == len(other):
        sizes = tuple(map(max, one, other))
        if all(1 in (a, b) or a == b for a, b in zip(one, other, strict=True)):
            return _of_sizes(left, sizes), _of_sizes(right, sizes)
    return _broadcast_values(self, left, right)


def _constant(self: Any, value: Any, dtype: Any) -> Any:
    key = repr(value), dtype.name
    if key not in _constants:
        _constants[key] = _scalar_constant(self, value, dtype)
    return _constants[key]


def install() -> None:
    """For all kernels that this process and its forks launch."""
    interpreter._patch_lang = _replace_once
    interpreter._patch_attr = _replace_operation
    interpreter.InterpretedFunction.__call__ = _call
    interpreter._get_np_dtype = _np_dtype_once
    core._unwrap_if_constexpr = _unwrapped
    core.block_type.__new__ = _new_block_type
    core.block_type.__init__ = lambda *_args: None
    core.tensor.__init__ = _init_tensor
    TritonSemantic.binary_op_type_checking_impl = _operands
    TritonSemantic.broadcast_impl_value = _broadcast
    TritonSemantic.scalar_constant = _constant
    # Without `debug`, which is off, it computes whether an integer overflows and tells nobody.
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)

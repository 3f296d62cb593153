"""A compiled form of a kernel, described without compiling it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TypeSpec = str | tuple["TypeSpec", ...]


@dataclass(frozen=True)
class Variant:
    """One entry of a kernel's configuration table, with all that a compilation needs.

    Attributes:
        name: what tells it from the kernel's other variants, such as "bf16, head size 128".
        function: the `@triton.jit` function.
        signature: run-time argument -> type as in Triton's ahead-of-time compiler: `"*bf16"`,
            `"i32"`, `"fp32"`; `":16"` appended where callers pass a pointer or number that is
            divisible by 16. A tuple argument has a tuple of types.
        constexprs: compile-time argument -> value. Together with `signature`, every argument.
        num_warps: warps of a program.
        num_stages: depth of the software pipeline.
        needs_wgmma: the code must use Hopper's warpgroup matrix instruction.
    """

    name: str
    function: Any
    signature: Mapping[str, TypeSpec]
    constexprs: Mapping[str, Any]
    num_warps: int
    num_stages: int = 1
    needs_wgmma: bool = False

"""Compile all kernels for Hopper, report what they take: ``python -m prefill_kernels.compilation``.

Needs no GPU: Triton and the assembler it ships produce the machine code that a GPU would run.
Prints docs/kernels.csv, whose columns docs/kernels.md explains.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from prefill_kernels.block_choice import configs as block_choice
from prefill_kernels.causal_conv import configs as causal_conv
from prefill_kernels.label_readout import configs as label_readout
from prefill_kernels.merge_state import configs as merge_state
from prefill_kernels.shared_prefix_attention import configs as shared_prefix_attention
from prefill_kernels.variant import TypeSpec, Variant

Types = dict[str, TypeSpec]
Hints = dict[tuple[int, ...], list[list[str | int]]]

HOPPER = GPUTarget("cuda", 90, 32)
SHARED_BYTES_LIMIT = 227 * 1024
"""Shared memory that one program can have on Hopper."""

KERNELS: dict[str, Callable[[], Iterable[Variant]]] = {
    "merge_state": merge_state.variants,
    "label_readout": label_readout.variants,
    "shared_prefix_attention": shared_prefix_attention.variants,
    "block_choice": block_choice.variants,
    "causal_conv": causal_conv.variants,
}

HEAD = "kernel,variant,warps,stages,registers,spills,shared,HGMMA\n"


@dataclass(frozen=True)
class Compiled:
    """Resources that the machine code of one variant needs.

    Attributes:
        kernel, variant: name of the kernel, and the variant of it.
        registers: per thread.
        spill_bytes: local memory per thread; Triton has no other use for it than spills.
        shared_bytes: shared memory of a program.
        has_wgmma: the code contains `HGMMA` instructions, or `QGMMA`, which are those of FP8.
    """

    kernel: str
    variant: Variant
    registers: int
    spill_bytes: int
    shared_bytes: int
    has_wgmma: bool


@cache
def compile_all() -> tuple[Compiled, ...]:
    """Every variant of every kernel, in the order of `KERNELS`; once a process.

    Raises:
        RuntimeError: `TRITON_INTERPRET` is set, under which nothing can be compiled.
    """
    if triton.knobs.runtime.interpret:
        raise RuntimeError("TRITON_INTERPRET is set: unset it to compile kernels")
    return tuple(
        compile_variant(kernel, variant)
        for kernel, variants in KERNELS.items()
        for variant in variants()
    )


def compile_variant(kernel: str, variant: Variant) -> Compiled:
    """Compile for Hopper and read the machine code."""
    types, hints = _types_and_hints(variant.function, variant.signature)
    types |= dict.fromkeys(variant.constexprs, "constexpr")
    compiled = triton.compile(
        ASTSource(variant.function, types, dict(variant.constexprs), hints),
        target=HOPPER,
        options={"num_warps": variant.num_warps, "num_stages": variant.num_stages},
    )
    listing = _disassemble(compiled.asm["cubin"])
    usage = {key: int(value) for key, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", listing)}
    return Compiled(
        kernel,
        variant,
        registers=usage["REG"],
        spill_bytes=usage["STACK"] + usage["LOCAL"],
        shared_bytes=compiled.metadata.shared,
        has_wgmma=re.search(r"\b[HQ]GMMA\b", listing) is not None,
    )


def _types_and_hints(function: Any, signature: Mapping[str, TypeSpec]) -> tuple[Types, Hints]:
    """Split `"*bf16:16"` into the type and the promise of divisibility."""
    hints: Hints = {}

    def split(spec: TypeSpec, place: tuple[int, ...]) -> TypeSpec:
        if isinstance(spec, tuple):
            return tuple(split(part, (*place, i)) for i, part in enumerate(spec))
        kind, _, divisor = spec.partition(":")
        if divisor:
            hints[place] = [["tt.divisibility", int(divisor)]]
        return kind

    places = {name: i for i, name in enumerate(function.arg_names)}
    return {name: split(spec, (places[name],)) for name, spec in signature.items()}, hints


def _disassemble(cubin: bytes) -> str:
    """Resource usage and SASS of a kernel, by the tool that Triton ships."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", "-sass", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def report() -> str:
    """docs/kernels.csv, without the lines that are appended for SGLang's kernels."""
    return HEAD + lines_of(compile_all())


def lines_of(compiled: Iterable[Compiled]) -> str:
    """A line for each variant, with the columns of `HEAD`."""
    return "".join(map(_line, compiled))


def _line(compiled: Compiled) -> str:
    variant = compiled.variant
    launch = f'{compiled.kernel},"{variant.name}",{variant.num_warps},{variant.num_stages}'
    needs = f"{compiled.registers},{compiled.spill_bytes},{compiled.shared_bytes}"
    return f"{launch},{needs},{'yes' if compiled.has_wgmma else 'no'}\n"


if __name__ == "__main__":
    sys.stdout.write(report())

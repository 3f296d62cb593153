"""The compiled code of the kernels for Hopper; no GPU is needed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import prefill_kernels
import pytest
from prefill_kernels.compilation import (
    KERNELS,
    SHARED_BYTES_LIMIT,
    compile_all,
    compile_variant,
    report,
)

from bench.kernels import expert_compilation

DOCS = Path(__file__).parents[2] / "docs" / "kernels.csv"


def test_every_kernel_is_compiled() -> None:
    package = Path(prefill_kernels.__file__).parent
    assert set(KERNELS) == {path.parent.name for path in package.glob("*/configs.py")}
    assert {compiled.kernel for compiled in compile_all()} == set(KERNELS)


def test_no_variant_spills_registers() -> None:
    spills = {(c.kernel, c.variant.name): c.spill_bytes for c in compile_all() if c.spill_bytes}
    assert spills == {}


def test_a_spill_is_seen() -> None:
    """With half the warps, a thread needs twice the registers, more than it can have."""
    widest = max(compile_all(), key=lambda c: c.registers * c.variant.num_warps)
    narrowed = replace(widest.variant, num_warps=widest.variant.num_warps // 2)
    assert compile_variant(widest.kernel, narrowed).spill_bytes > 0


def test_shared_memory_fits() -> None:
    sizes = {(c.kernel, c.variant.name): c.shared_bytes for c in compile_all()}
    assert {name: size for name, size in sizes.items() if size > SHARED_BYTES_LIMIT} == {}


def test_warpgroup_matrix_instructions_where_they_are_needed() -> None:
    found = {(c.kernel, c.variant.name): c.has_wgmma for c in compile_all()}
    needed = {(c.kernel, c.variant.name): c.variant.needs_wgmma for c in compile_all()}
    assert any(needed.values())
    assert {name for name in found if needed[name] and not found[name]} == set()


def test_every_argument_is_described() -> None:
    for compiled in compile_all():
        variant = compiled.variant
        described = {*variant.signature, *variant.constexprs}
        assert described == set(variant.function.arg_names), variant.name


def test_the_table_is_generated() -> None:
    assert DOCS.read_text(encoding="utf-8") == report() + expert_compilation.report(), (
        "run `python -m prefill_kernels.compilation > docs/kernels.csv`, and then "
        "`python -m bench.kernels.expert_compilation >> docs/kernels.csv`"
    )


def test_every_block_of_sglangs_experts_fits_and_spills_nothing() -> None:
    compiled = expert_compilation.compile_experts()
    assert {c.variant.constexprs["BLOCK_SIZE_M"] for c in compiled} == {16, 32, 64, 128}
    for each in compiled:
        described = {*each.variant.signature, *each.variant.constexprs}
        assert described == set(each.variant.function.arg_names), each.variant.name
        assert each.spill_bytes == 0, each.variant.name
        assert each.shared_bytes <= SHARED_BYTES_LIMIT, each.variant.name
        assert each.has_wgmma or not each.variant.needs_wgmma, each.variant.name


def test_nothing_is_compiled_under_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(RuntimeError, match="unset it"):
        compile_all.__wrapped__()

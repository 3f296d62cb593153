"""SGLang's kernels of Kimi's delta attention, as packed forwards call them, against torch."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import triton.language as tl
from sglang.kernels.ops.attention.fla import (
    chunk_delta_h,
    chunk_intra,
    chunk_intra_token_parallel,
    cumsum,
    kda,
    op,
    utils,
)
from sglang.srt.layers.attention.linear.kernels.kda_triton import TritonKDAKernel
from torch import Tensor
from triton.runtime import interpreter

from sglang_prefill_ext.border.model.recurrent import delta_rule
from sglang_prefill_ext.border.model.recurrent.delta_rule import carry_kimi, kimi_kernel_inputs
from sglang_prefill_ext.recurrent.inputs import delta_rule_inputs
from sglang_prefill_ext.recurrent.layers import RuleWay, by_torch
from tests.kernels.recurrent.parts import (
    assert_agrees_with_torch,
    assert_called_as_by_sglang,
    assert_joined_as_apart,
    part_of,
)

pytestmark = pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")

HEADS, DIM = 2, 64
LENS = [3, 70, 1]
TUNED = (
    chunk_intra.chunk_kda_fwd_kernel_inter_solve_fused,
    chunk_intra_token_parallel.chunk_kda_fwd_kernel_intra_token_parallel,
    cumsum.chunk_local_cumsum_vector_kernel,
    kda.chunk_gla_fwd_kernel_o,
    kda.recompute_w_u_fwd_kernel,
    chunk_delta_h.chunk_gated_delta_rule_fwd_kernel_h_blockdim64,
)


class Builder(interpreter.InterpreterBuilder):
    """Multiplies bfloat16 as numbers; Triton's own interpreter would multiply their bits."""

    def create_dot(self, a: Any, b: Any, *more: Any) -> Any:
        return super().create_dot(*(self._wide(each) for each in (a, b)), *more)

    def _wide(self, factor: Any) -> Any:
        return self.cast_impl(factor, tl.float32) if factor.dtype == tl.bfloat16 else factor


@pytest.fixture(autouse=True)
def _as_interpreted(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter run SGLang's kernels, see `test_delta_rule`."""
    if device.type == "cuda":
        return
    monkeypatch.setattr(utils, "custom_device_ctx", lambda _index: nullcontext())
    for kernel in TUNED:
        tuner: Any = kernel
        while not hasattr(tuner, "configs") and hasattr(tuner, "fn"):
            tuner = tuner.fn
        if hasattr(tuner, "configs"):
            monkeypatch.setattr(tuner, "configs", tuner.configs[:1])
    monkeypatch.setattr(interpreter.interpreter_builder, "__class__", Builder)
    for module in (op, chunk_delta_h, chunk_intra, chunk_intra_token_parallel, kda):
        monkeypatch.setattr(module, "exp", lambda x: tl.exp(x), raising=False)
        monkeypatch.setattr(module, "exp2", lambda x: tl.exp2(x), raising=False)


def drawn(
    device: torch.device, seed: int, tokens: int = sum(LENS), heads: int = HEADS
) -> tuple[list[Tensor], list[Tensor]]:
    """Weights, ``[H, 1]`` and ``[H, D]``; then queries, keys, values, and both gates."""
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(seed))
    wide = draw(4, tokens, heads, DIM).to(device, torch.float16)
    # Decays are weak, as in trained models: SGLang divides by those of up to 16 tokens.
    weights = [draw(heads, 1).to(device), draw(heads, DIM).to(device) - 4]
    return weights, [*wide, draw(tokens, heads).to(device, torch.float16)]


@pytest.mark.parametrize(
    ("keep", "slots", "fused"), [(True, [2, 0, 1], 256), (False, [1, 1, 0], 0)]
)
def test_both_ways_agree(
    device: torch.device, keep: bool, slots: list[int], fused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_rule, "_FUSED_PROGRAMS", fused)
    weights, inputs = drawn(device, 1)
    way = RuleWay(partial(kimi_kernel_inputs, *weights), carry_kimi)
    by_torch_alone = by_torch(partial(delta_rule_inputs, *weights))
    states = torch.randn(3, HEADS, DIM, DIM, generator=torch.Generator().manual_seed(3)).to(device)
    part = part_of(LENS, slots, device, keep=keep)
    assert_agrees_with_torch(way, by_torch_alone, inputs, states, part)


def test_the_kernels_are_called_as_by_sglang(device: torch.device) -> None:
    """Apart from the lists of chunks, which SGLang makes itself."""
    weights, (q, k, v, a, b) = drawn(device, 2)
    inputs = kimi_kernel_inputs(*weights, q, k, v, a, b)
    states = torch.randn(3, HEADS, DIM, DIM, generator=torch.Generator().manual_seed(4)).to(device)
    part = part_of(LENS, [0, 2, 1], device, keep=True)
    assert_called_as_by_sglang(carry_kimi, TritonKDAKernel(), inputs, (q, k, v), states, part)


@pytest.mark.parametrize(
    ("fused", "prefixes", "rows", "slots"),
    [
        (1 << 20, [3, 70], [1, 66, 5], [2, 0, 1]),
        (1 << 20, [], [65, 4], [0, 0]),
        (1 << 20, [7], [2, 3], [1, 1]),
        (0, [7], [2, 3], [1, 1]),  # a program for each token
    ],
)
def test_rows_start_behind_prefixes_of_the_same_part(
    device: torch.device,
    fused: int,
    prefixes: list[int],
    rows: list[int],
    slots: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by a part of prefixes and one of rows; what a part has room for changes nothing."""
    monkeypatch.setattr(delta_rule, "_FUSED_PROGRAMS", fused)
    weights, of_layer = drawn(device, 5, sum(prefixes) + sum(rows), heads=1)
    way = RuleWay(partial(kimi_kernel_inputs, *weights), carry_kimi)
    assert_joined_as_apart(way, way.prepare(*of_layer), prefixes, rows, slots)

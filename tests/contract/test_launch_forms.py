"""No request waits for a compiler: all forms of the kernels were launched before the first one.

Triton compiles a kernel again for every new combination of its constants, of types, and of what it
notices of the arguments: a pointer or a number that is a multiple of 16, a number that is 1. Here a
launch computes nothing, and only its form on Hopper is noted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prefill_kernels.compilation import HOPPER
from torch import Tensor
from triton.compiler import make_backend
from triton.runtime.jit import create_function_from_signature

from sglang_prefill_ext.attention.inputs import HeadShape, LayerInputs
from sglang_prefill_ext.attention.prefix_libraries import LIBRARIES, RaggedAttend
from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.forward.compile_ahead import compile_ahead
from sglang_prefill_ext.forward.executor import PackedExecutor
from sglang_prefill_ext.forward.logits import ProductHead
from sglang_prefill_ext.forward.model import Attend
from sglang_prefill_ext.layout.ragged_plan import RaggedPlan
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Labels
from tests.unit.attention.reference import Variant
from tests.unit.forward.kernels import KERNELS
from tests.unit.forward.tiny_model import HIDDEN, LAYERS, TinyModel
from tests.unit.scheduling.caches import MemoryCache
from tests.unit.scheduling.jobs import job_of_rows, run_alone

BUDGET = ForwardBudget(16_384)
WAYS = [AttentionWay.FUSED, AttentionWay.MERGE, AttentionWay.MERGE_FA3]
GRAPHS = [(way, 0) for way in WAYS] + [(AttentionWay.FUSED, 4096)]
"""Ways of attention, and tokens of the largest graph."""
VARIANTS = (Variant(), Variant(soft_cap=50.0, window=100))
"""Of the layers; as many as there are."""


class Projections(TinyModel):
    """Queries, keys and values as a model projects them, of zeros, and an output head.

    Seven heads, as the smallest Qwen2 has on each of two ranks; 7 divides no size.
    """

    heads = (HeadShape(7, 1, 64, 64),)
    dtype = torch.bfloat16

    def _run(
        self,
        token_ids: Tensor,
        positions: Tensor,
        read_at: Tensor,
        attend: Attend,
        overrides: object,
        adapted: object,
        cut: int | None,
    ) -> Tensor:
        del positions, overrides, adapted
        for layer, variant in zip(range(LAYERS), VARIANTS, strict=True):
            projected = torch.zeros(len(token_ids), 9 * 64, dtype=self.dtype)
            q, k, v = projected.split([7 * 64, 64, 64], dim=1)
            q = q[read_at] if layer == cut else q
            heads = (q.view(-1, 7, 64), k.view(-1, 1, 64), v.view(-1, 1, 64))
            attend(layer, LayerInputs(*heads, 0.125, *variant))
        return torch.zeros(len(read_at), HIDDEN, dtype=self.dtype)

    def product_head(self) -> ProductHead:
        return ProductHead(torch.zeros(self.vocab_size, HIDDEN, dtype=self.dtype))


class Forms:
    """The forms in which kernels were launched."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen: set[str] = set()
        patch.setenv("TRITON_INTERPRET", "1")  # the checks of arguments let a CPU's tensors pass
        for kernel in KERNELS:
            patch.setattr(kernel, "run", self._noting(kernel))

    def _noting(self, kernel: Any) -> Any:
        form_of = create_function_from_signature(
            kernel.signature, kernel.params, make_backend(HOPPER)
        )

        def note(*args: object, grid: object, warmup: bool, **kwargs: object) -> None:
            _, form, options = form_of(*args, **kwargs)
            self.seen.add(f"{kernel.fn.__name__} {form} {options}")

        return note


def no_prefix(_plan: RaggedPlan, _queries: Tensor, _keys: Tensor) -> RaggedAttend:
    """Stands in for a library whose log-sum-exp is a view of `[heads, tokens]`."""

    def attend(q: Tensor, _k: Tensor, v: Tensor, _scale: float) -> tuple[Tensor, Tensor]:
        return q.new_zeros(*q.shape[:2], v.shape[2]), torch.zeros(q.shape[1], len(q)).T

    return attend


def run(executor: PackedExecutor, rows: PackedRows, budget: ForwardBudget) -> None:
    run_alone(executor, job_of_rows(rows, budget), MemoryCache(keeps=False))


@st.composite
def requests(draw: st.DrawFn) -> PackedRows:
    prefix = draw(st.integers(0, 20) | st.integers(1024, 5000))
    lens = draw(st.lists(st.integers(1, 5), min_size=1, max_size=90))
    lens += [draw(st.integers(1, 20))] * draw(st.integers(0, 300))
    labels = int_array(draw(st.lists(st.integers(0, 9), min_size=1, max_size=3)))
    tokens = np.zeros(prefix + sum(lens), np.int32)
    normalised = draw(st.booleans())
    return PackedRows(tokens, prefix, int_array(lens), Labels(labels, normalised=normalised))


@pytest.fixture(scope="module", params=GRAPHS, ids=str)
def compiled(request: pytest.FixtureRequest) -> Any:
    """The executor of a server after compiling ahead, and the forms that it launched."""
    way, graph_tokens = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(LIBRARIES, AttentionWay.MERGE_FA3, no_prefix)
        patch.setattr("sglang_prefill_ext.forward.executor.multiprocessors", lambda _device: 132)
        forms = Forms(patch)
        executor = PackedExecutor(
            Projections(), readout_bytes=1 << 20, attention=way, caches_prefixes=True
        )
        if graph_tokens:
            executor.capture_graphs(graph_tokens)
            assert not executor.graph_use.obstacle
        compile_ahead(executor, BUDGET, MemoryCache(keeps=False))
        yield executor, forms


@given(rows=requests(), max_tokens=st.integers(300, BUDGET.max_tokens))
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_no_request_launches_a_form_that_was_not_compiled(
    compiled: tuple[PackedExecutor, Forms], rows: PackedRows, max_tokens: int
) -> None:
    executor, forms = compiled
    before = set(forms.seen)
    run(executor, rows, ForwardBudget(max_tokens))
    if executor.graph_use.sizes:
        with executor.eagerly():  # as if its rows had embeddings in place of tokens, or an adapter
            run(executor, rows, ForwardBudget(max_tokens))
    assert forms.seen - before == set()


def test_divided_keys_are_among_the_forms(compiled: tuple[PackedExecutor, Forms]) -> None:
    _, forms = compiled
    assert any(form.startswith("merge_parts_kernel") for form in forms.seen)


def test_a_new_form_is_noticed(compiled: tuple[PackedExecutor, Forms]) -> None:
    executor, forms = compiled
    before = set(forms.seen)
    rows = PackedRows(np.zeros(9, np.int32), 4, int_array([5]), Labels(int_array([0])))
    one_more = Variant(window=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{__name__}.VARIANTS", (one_more, one_more))
        run(executor, rows, BUDGET)
    assert forms.seen - before
    forms.seen = before

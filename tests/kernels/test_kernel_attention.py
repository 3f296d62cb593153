"""The kernels behind the attention of a forward, against dense torch calls."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
import triton
from torch import Tensor

from sglang_prefill_ext.attention.dense import DenseAttention
from sglang_prefill_ext.attention.inputs import HeadShape, HeldKV, LayerInputs
from sglang_prefill_ext.attention.kernels import KernelAttention, kernel_obstacle
from sglang_prefill_ext.attention.prefix_libraries import LIBRARIES
from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.errors import ConfigError, PackingError
from sglang_prefill_ext.forward import attention_choice
from sglang_prefill_ext.forward.attention_choice import resolve_attention, way_of_all_ranks
from sglang_prefill_ext.forward.layers import Attention
from sglang_prefill_ext.forward.upload import upload
from sglang_prefill_ext.layout import kernel_plan
from sglang_prefill_ext.layout.tokens import ForwardLayout
from tests.unit.attention import fake_libraries
from tests.unit.attention.inputs import in_slots
from tests.unit.attention.reference import PLAIN, Variant
from tests.unit.attention.strategies import layout
from tests.unit.forward.tiny_model import TinyModel

SHAPE = HeadShape(4, 2, 16, 8)
SCALE = 0.25
TOLERANCE = 1e-5
LAYOUTS = {
    "rows": layout((0, 0, 3, 1, 20)),
    "fresh_prefix": layout((0, 9, 2, 17, 1)),
    "held_prefix": layout((21, 0, 5, 4)),
    "one_held_of_three": layout((0, 4, 2), (18, 3, 1, 6), (0, 0, 7)),
    "several_held": layout((5, 2, 3), (0, 6, 1, 1), (33, 0, 2, 2)),
    "chunk_of_a_prefix": layout((12, 19)),
    "whole_prompts": replace(layout((0, 0, 3, 1, 40, 17), (0, 0, 9)), causal=False),
}
WAYS = [AttentionWay.FUSED, AttentionWay.MERGE]
WRONG_KERNEL = cache(attention_choice.wrong_kernel)

each_layout = pytest.mark.parametrize("forward", LAYOUTS.values(), ids=LAYOUTS)
each_way = pytest.mark.parametrize("way", WAYS)


class Inputs:
    """Random q, k, v of a forward, as views of one tensor, and held K/V."""

    def __init__(
        self, forward: ForwardLayout, device: torch.device, shape: HeadShape = SHAPE
    ) -> None:
        heads, keys = shape.num_heads, shape.num_key_heads
        dim, value_dim = shape.head_dim, shape.value_dim
        random = torch.Generator().manual_seed(3)

        def tensors(count: int, *sizes: tuple[int, int]) -> list[Tensor]:
            widths = [number * width for number, width in sizes]
            fused = torch.randn(count, sum(widths), generator=random).to(device)
            parts = zip(torch.split(fused, widths, dim=1), sizes, strict=True)
            return [part.unflatten(1, size) for part, size in parts]

        key_sizes = (keys, dim), (keys, value_dim)
        self.q, self.k, self.v = tensors(forward.num_tokens, (heads, dim), *key_sizes)
        self.held: list[HeldKV | None] = [
            (k, v) if len(k) else None
            for k, v in (tensors(group.held, *key_sizes) for group in forward.groups)
        ]

    def forward(self, attention: Attention, variant: Variant = PLAIN) -> Tensor:
        cached = self._bind(attention)
        return attention.forward(LayerInputs(self.q, self.k, self.v, SCALE, *variant), cached)

    def read(
        self, attention: Attention, positions: Sequence[int], variant: Variant = PLAIN
    ) -> Tensor:
        cached, reads = self._bind(attention), self.q[list(positions)]
        return attention.read(LayerInputs(reads, self.k, self.v, SCALE, *variant), cached)

    def _bind(self, attention: Attention) -> HeldKV | None:
        cached, page_table = in_slots(self.held)
        attention.bind(upload(attention.host_arrays(), self.q.device), page_table)
        return cached


class InPlace(Tensor):
    """Memory of a pool that must be read in place: copying tokens out of it fails."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        copies = ("__getitem__", "index_select", "gather", "take", "cat", "clone", "contiguous")
        assert name not in copies, f"{name} of K/V that are held"
        return super().__torch_function__(func, types, args, kwargs or {})


def kernels(
    forward: ForwardLayout, way: AttentionWay, device: torch.device, processors: int = 0
) -> KernelAttention:
    return KernelAttention(forward, way, (SHAPE,), torch.float32, device, processors=processors)


def assert_as_dense(
    inputs: Inputs, attention: Attention, forward: ForwardLayout, variant: Variant = PLAIN
) -> None:
    """Outputs of all tokens, and of those that are read, are those of dense attention."""
    positions = forward.read_positions().tolist()
    wanted = inputs.forward(DenseAttention(forward, inputs.q.device), variant)
    found, read = inputs.forward(attention, variant), inputs.read(attention, positions, variant)
    torch.testing.assert_close(found, wanted, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(read, wanted[positions], rtol=0, atol=TOLERANCE)


@each_layout
@pytest.mark.parametrize("way", [*WAYS, *LIBRARIES])
def test_every_token(
    forward: ForwardLayout, way: AttentionWay, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The libraries are stand-ins, so that this runs without a GPU."""
    fake_libraries.install(monkeypatch)
    inputs = Inputs(forward, device)
    found = inputs.forward(kernels(forward, way, device))
    wanted = inputs.forward(DenseAttention(forward, device))
    torch.testing.assert_close(found, wanted, rtol=0, atol=TOLERANCE)


@each_way
def test_layers_whose_heads_differ(way: AttentionWay, device: torch.device) -> None:
    forward = LAYOUTS["one_held_of_three"]
    shapes = (SHAPE, HeadShape(8, 1, 32, 32))
    attention = KernelAttention(forward, way, shapes, torch.float32, device)
    for shape in shapes:
        assert_as_dense(Inputs(forward, device, shape), attention, forward)


def test_heads_of_one_shape_are_not_looked_up(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(LayerInputs, "heads")
    forward = LAYOUTS["rows"]
    assert Inputs(forward, device).forward(kernels(forward, WAYS[0], device)).isfinite().all()


@each_way
@pytest.mark.parametrize("held", [0, 130, 200])
def test_divided_keys(
    way: AttentionWay, held: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_plan, "DIVIDED_PREFIX_TOKENS", 1)
    monkeypatch.setattr(kernel_plan, "PART_TOKENS", 1)
    forward = layout((held, 200 - held, 2, 1))
    inputs, attention = Inputs(forward, device), kernels(forward, way, device, processors=28)
    launched = [plan.parts for plan in attention._plans[SHAPE]]
    assert launched[-1] > 1
    assert (launched[0] > 1) == (way is AttentionWay.FUSED)
    sinks = torch.tensor([1.5, -4.0, 3.0, 0.0], device=device)
    for variant in (PLAIN, Variant(soft_cap=2.0, window=90, sinks=sinks)):
        assert_as_dense(inputs, attention, forward, variant)


@each_layout
@each_way
def test_read_positions(forward: ForwardLayout, way: AttentionWay, device: torch.device) -> None:
    inputs = Inputs(forward, device)
    # A chunk of a prefix reads nothing: its first token stands in, and its output is not used.
    positions = forward.read_positions().tolist() or [0]
    found = inputs.read(kernels(forward, way, device), positions)
    assert found.shape == (len(positions), SHAPE.num_heads, SHAPE.value_dim)
    assert not found.isnan().any()
    if forward.num_rows:
        wanted = inputs.read(DenseAttention(forward, device), positions)
        torch.testing.assert_close(found, wanted, rtol=0, atol=TOLERANCE)


@each_way
def test_a_window_to_both_sides_is_refused(way: AttentionWay, device: torch.device) -> None:
    forward = LAYOUTS["whole_prompts"]
    inputs = Inputs(forward, device)
    with pytest.raises(PackingError, match="window"):
        inputs.forward(kernels(forward, way, device), Variant(window=6))


@pytest.mark.parametrize("window", [None, 6])
@each_way
def test_soft_cap_window_and_sinks(
    way: AttentionWay, window: int | None, device: torch.device
) -> None:
    forward = LAYOUTS["one_held_of_three"]
    inputs, attention = Inputs(forward, device), kernels(forward, way, device)
    sinks = torch.tensor([1.5, -4.0, 3.0, 0.0], device=device)
    variant = Variant(soft_cap=2.0, window=window, sinks=sinks)
    assert_as_dense(inputs, attention, forward, variant)


@pytest.mark.parametrize("name", ["fresh_prefix", "one_held_of_three"])
@each_way
def test_chunks(way: AttentionWay, name: str, device: torch.device) -> None:
    forward, shapes = LAYOUTS[name], (SHAPE, replace(SHAPE, chunk=5))
    attention = KernelAttention(forward, way, shapes, torch.float32, device, processors=60)
    for variant in (PLAIN, Variant(chunk=5)):
        assert_as_dense(Inputs(forward, device), attention, forward, variant)


def test_chunks_in_which_all_prompts_lie_have_no_plan_of_their_own(device: torch.device) -> None:
    forward, kind = LAYOUTS["rows"], (torch.float32, device)  # of at most 20 tokens
    none, idle, used = (
        len(KernelAttention(forward, WAYS[0], (SHAPE, each), *kind).host_arrays())
        for each in (replace(SHAPE, chunk=chunk) for chunk in (0, 20, 19))
    )
    assert none == idle < used


@each_way
def test_held_prefixes_are_read_where_they_lie(
    way: AttentionWay, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = LAYOUTS["several_held"]
    inputs, attention = Inputs(forward, device), kernels(forward, way, device)
    wanted = inputs.forward(DenseAttention(forward, device))
    (keys, values), page_table = in_slots(inputs.held)
    attention.bind(upload(attention.host_arrays(), device), page_table)
    cached = keys.as_subclass(InPlace), values.as_subclass(InPlace)
    with pytest.raises(AssertionError, match="__getitem__ of K/V"):
        cached[0][page_table]
    monkeypatch.setattr(torch, "cat", None)
    of_layer = LayerInputs(inputs.q, inputs.k, inputs.v, SCALE)
    found = attention.forward(of_layer, cached)
    torch.testing.assert_close(found.as_subclass(Tensor), wanted, rtol=0, atol=TOLERANCE)


@each_way
def test_one_upload_serves_every_layer(way: AttentionWay, device: torch.device) -> None:
    forward = LAYOUTS["several_held"]
    attention, inputs = kernels(forward, way, device), Inputs(forward, device)
    first = inputs.forward(attention)
    inputs.held = [pair and (pair[0] + 1, pair[1] + 1) for pair in inputs.held]
    second = inputs.forward(attention)
    assert not torch.allclose(first, second, atol=0.01)
    wanted = inputs.forward(DenseAttention(forward, device))
    torch.testing.assert_close(second, wanted, rtol=0, atol=TOLERANCE)


# Whether the kernels can run at all


@pytest.fixture
def kernels_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All models of the tests below have the same heads."""
    monkeypatch.setattr(attention_choice, "wrong_kernel", WRONG_KERNEL)


def test_an_obstacle_is_named(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    def obstacle(shape: HeadShape, dtype: torch.dtype = torch.float32) -> str:
        return kernel_obstacle(shape, dtype, device)

    assert obstacle(SHAPE) == ""
    assert "head_dim is 512" in obstacle(HeadShape(4, 2, 512, 64))
    assert "head_dim is 512" in obstacle(HeadShape(4, 2, 64, 512))
    assert "group_size is 128" in obstacle(HeadShape(128, 1, 64, 64))
    assert "float64" in obstacle(SHAPE, torch.float64)
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    on_cpu = kernel_obstacle(SHAPE, torch.float32, torch.device("cpu"))
    assert on_cpu.startswith("the model is on cpu")


def model_on(device: torch.device) -> TinyModel:
    model = TinyModel()
    model.device = device
    return model


@pytest.mark.parametrize("asked", AttentionWay)
@pytest.mark.usefixtures("kernels_checked_once")
def test_what_was_asked_for_is_used_if_it_can_run(
    asked: AttentionWay, device: torch.device
) -> None:
    """No library takes the model's float32."""
    model = model_on(device)
    auto = AttentionWay.TORCH if device.type == "cpu" else AttentionWay.FUSED
    instead = {AttentionWay.AUTO: auto} | dict.fromkeys(LIBRARIES, AttentionWay.MERGE)
    assert resolve_attention(asked, model) is instead.get(asked, asked)


@pytest.mark.parametrize("asked", LIBRARIES)
@pytest.mark.usefixtures("kernels_checked_once")
def test_a_library_that_is_right_is_used_and_one_that_is_not_is_named(
    asked: AttentionWay,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake_libraries.install(monkeypatch)
    monkeypatch.setattr(attention_choice, "library_obstacle", lambda _dtype, _device: "")
    model = model_on(device)
    assert resolve_attention(asked, model) is asked
    assert not caplog.records
    # Every prefix gets a wrong weight.
    ragged = fake_libraries.ragged
    monkeypatch.setattr(
        fake_libraries, "ragged", lambda *args: (ragged(*args)[0], ragged(*args)[1] + 1)
    )
    assert resolve_attention(asked, model) is AttentionWay.MERGE
    (record,) = caplog.records
    assert (
        f"--prefill-only-attention {asked} falls back to merge: {asked} is off by" in record.message
    )


@pytest.mark.parametrize("asked", LIBRARIES)
@pytest.mark.usefixtures("kernels_checked_once")
def test_a_library_that_is_not_installed_is_named(
    asked: AttentionWay,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for module in ("flashinfer", "sgl_kernel"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, "sgl_kernel.flash_attn", None)
    monkeypatch.setattr(attention_choice, "library_obstacle", lambda _dtype, _device: "")
    model = model_on(device)
    assert resolve_attention(asked, model) is AttentionWay.MERGE
    assert f"{asked} fails: ModuleNotFoundError" in caplog.text


def test_what_cannot_run_is_refused_only_if_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    for asked in (AttentionWay.AUTO, AttentionWay.TORCH):
        assert resolve_attention(asked, TinyModel()) is AttentionWay.TORCH
    for asked in (*WAYS, *LIBRARIES):
        with pytest.raises(ConfigError, match=f"--prefill-only-attention {asked} cannot be used"):
            resolve_attention(asked, TinyModel())


@each_layout
@each_way
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter shows those of numpy
def test_nan_stays_with_its_group(
    forward: ForwardLayout, way: AttentionWay, device: torch.device
) -> None:
    inputs, starts = Inputs(forward, device), forward.group_starts.tolist()
    wanted = inputs.forward(kernels(forward, way, device))
    for start, stop in pairwise([*starts, forward.num_tokens]):
        spoilt = Inputs(forward, device)
        for tensor in (spoilt.q, spoilt.k, spoilt.v):
            tensor[start] = torch.nan
        out = spoilt.forward(kernels(forward, way, device))
        assert out[start].isnan().all()
        assert torch.equal(out[:start], wanted[:start])
        assert torch.equal(out[stop:], wanted[stop:])


@pytest.mark.parametrize("own", AttentionWay)
@pytest.mark.parametrize("other", AttentionWay)
def test_ranks_have_one_way(own: AttentionWay, other: AttentionWay) -> None:
    asked: list[list[int]] = []

    def alone(numbers: list[int]) -> list[int]:
        asked.append(numbers)
        return numbers

    assert [way_of_all_ranks(way, alone) for way in (own, other)] == [own, other]
    together = [max(pair) for pair in zip(*asked, strict=True)]
    found = {way_of_all_ranks(way, lambda _numbers: together) for way in (own, other)}
    assert found == ({own} if own is other else {AttentionWay.TORCH})

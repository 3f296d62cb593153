"""merge_state and merge_parts against float64, and what they must not read or write."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import triton
from hypothesis import given, settings
from hypothesis import strategies as st
from prefill_kernels.errors import KernelArgumentError
from prefill_kernels.merge_state import merge_parts, merge_state
from prefill_kernels.merge_state.op import MAX_PAIRS
from torch import Tensor

from tests.kernels.devices import on
from tests.kernels.references import merge_states_reference

EPSILON = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}

State = tuple[Tensor, Tensor]


@pytest.fixture
def state(device: torch.device, dtype: torch.dtype) -> Callable[..., State]:
    """A random part: `state(seed, tokens=.., heads=.., dim=..)`."""

    def make(seed: int, *, tokens: int = 5, heads: int = 3, dim: int = 16) -> State:
        generator = torch.Generator().manual_seed(seed)
        out = torch.randn(tokens, heads, dim, generator=generator)
        lse = 3 * torch.randn(tokens, heads, generator=generator)
        return out.to(device, dtype), lse.to(device)

    return make


def _empty_like(state: State) -> State:
    return torch.full_like(state[0], torch.nan), torch.full_like(state[1], -torch.inf)


def _assert_merged(merged: State, outs: Sequence[Tensor], lses: Sequence[Tensor]) -> None:
    expected_out, expected_lse = merge_states_reference(outs, lses)
    epsilon = EPSILON[outs[0].dtype]
    torch.testing.assert_close(merged[0].double(), expected_out, atol=epsilon, rtol=epsilon)
    torch.testing.assert_close(merged[1].double(), expected_lse, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("heads", "dim"), [(1, 1), (3, 16), (7, 80), (2, 96), (5, 256)])
def test_merge_as_defined(
    state: Callable[..., State], heads: int, dim: int, dtype: torch.dtype
) -> None:
    a, b = (state(seed, tokens=11, heads=heads, dim=dim) for seed in range(2))
    merged = merge_state(*a, *b)
    assert merged[0].dtype == dtype
    assert merged[1].dtype == torch.float32
    _assert_merged(merged, (a[0], b[0]), (a[1], b[1]))


@settings(max_examples=40)
@given(
    lses=st.lists(
        st.tuples(*[st.one_of(st.just(-torch.inf), st.floats(-300, 300))] * 2),
        min_size=1,
        max_size=6,
    )
)
def test_any_weights(device: torch.device, lses: list[tuple[float, ...]]) -> None:
    """Empty parts hold NaN, and so do parts whose weight is zero in float32."""
    table = torch.tensor(lses, dtype=torch.float32, device=device)
    parts = table.T.unsqueeze(-1).unbind()
    generator = torch.Generator().manual_seed(len(lses))
    outs = [torch.randn(len(lses), 1, 8, generator=generator).to(device) for _ in parts]
    expected = merge_states_reference(outs, parts)
    largest = table.amax(dim=1)
    for out, lse in zip(outs, parts, strict=True):
        out[(lse[:, 0] == -torch.inf) | (lse[:, 0] < largest - 110)] = torch.nan
    two = merge_state(outs[0], parts[0], outs[1], parts[1])
    for out, lse in (two, merge_parts(torch.stack(outs), torch.stack(parts))):
        torch.testing.assert_close(out.double(), expected[0], atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(lse.double(), expected[1], atol=1e-6, rtol=1e-6)


def test_empty_parts_change_nothing(state: Callable[..., State]) -> None:
    full = state(0)
    for first, second in ((full, _empty_like(full)), (_empty_like(full), full)):
        out, lse = merge_state(*first, *second)
        assert torch.equal(out, full[0])
        assert torch.equal(lse, full[1])


def test_only_empty_parts_give_zero(state: Callable[..., State]) -> None:
    empty = _empty_like(state(0))
    out, lse = merge_state(*empty, *empty)
    assert torch.equal(out, torch.zeros_like(out))
    assert torch.equal(lse, empty[1])


def test_a_nan_with_weight_is_not_hidden(state: Callable[..., State]) -> None:
    (out_a, lse_a), (out_b, lse_b) = state(0), state(1)
    out_b[2, 1, 3] = torch.nan
    lse_a[4, 0] = torch.nan
    out, lse = merge_state(out_a, lse_a, out_b, lse_b)
    assert out.isnan().nonzero().tolist() == [[2, 1, 3], *([4, 0, d] for d in range(16))]
    assert lse.isnan().nonzero().tolist() == [[4, 0]]


def test_large_lse_stay_finite(state: Callable[..., State]) -> None:
    out, lse = state(0)
    merged, merged_lse = merge_state(out, lse + 1e4, out, lse + 1e4)
    assert torch.equal(merged, out)
    torch.testing.assert_close(merged_lse, lse + 1e4 + torch.tensor(2.0).log())


@pytest.mark.parametrize("tokens", [0, 1])
def test_few_tokens(state: Callable[..., State], tokens: int) -> None:
    a, b = state(0, tokens=tokens), state(1, tokens=tokens)
    merged = merge_state(*a, *b)
    assert merged[0].shape == a[0].shape
    _assert_merged(merged, (a[0], b[0]), (a[1], b[1]))


def test_any_strides(state: Callable[..., State], device: torch.device, dtype: torch.dtype) -> None:
    """A slice of a packed projection, heads before tokens, and a transposed LSE as of FA3."""
    (out_a, lse_a), (out_b, lse_b) = state(0), state(1)
    packed = torch.full((5, 3, 40), torch.nan, device=device, dtype=dtype)
    packed[..., 8:24] = out_a
    heads_first = out_b.transpose(0, 1).contiguous().transpose(0, 1)
    fa3_lse = lse_b.T.contiguous().T
    target = torch.full((3, 5, 20), 7.0, device=device, dtype=dtype)
    out = target.transpose(0, 1)[..., 2:18]
    merged = merge_state(packed[..., 8:24], lse_a, heads_first, fa3_lse, out=out)
    assert merged[0] is out
    _assert_merged(merged, (out_a, out_b), (lse_a, lse_b))
    assert (target[..., :2] == 7).all()
    assert (target[..., 18:] == 7).all()


def test_a_broadcast_part(state: Callable[..., State]) -> None:
    """One state for all tokens has a token stride of 0."""
    one, other = state(0, tokens=1), state(1)
    outs, lses = (one[0].expand(5, 3, 16), other[0]), (one[1].expand(5, 3), other[1])
    _assert_merged(merge_state(outs[0], lses[0], *other), outs, lses)


@pytest.mark.parametrize("place", [0, 1])
def test_in_place(state: Callable[..., State], place: int) -> None:
    states = [state(0), state(1)]
    expected = merge_state(*states[0], *states[1])
    out, lse = states[place]
    merged = merge_state(*states[0], *states[1], out=out, lse=lse)
    assert merged[0] is out
    assert merged[1] is lse
    assert torch.equal(out, expected[0])
    assert torch.equal(lse, expected[1])


def test_offsets_beyond_32_bits(device: torch.device) -> None:
    """Token 1 lies 2**31 elements behind token 0; the memory between them is never touched."""
    stride = 2**31 + 8
    far = torch.empty(0, dtype=torch.float16, device=device).untyped_storage()
    far.resize_(2 * (stride + 8))
    part = torch.empty(0, dtype=torch.float16, device=device).set_(
        far, 0, (2, 1, 8), (stride, 8, 1)
    )
    part[0], part[1] = 1, 2
    other = torch.tensor([5.0, 6.0], device=device).half()[:, None, None].repeat(1, 1, 8)
    lse = torch.zeros(2, 1, device=device)
    merge_state(part, lse, other, lse, out=part)
    assert part[:, 0, 0].tolist() == [3, 4]


OUT, LSE = torch.zeros(5, 3, 16), torch.zeros(5, 3)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("out_a", {"out_a": OUT[0]}),
        ("out_a", {"out_a": OUT.double()}),
        ("out_a", {"out_a": OUT[..., ::2], "out_b": OUT[..., :8]}),
        ("out_a", {"out_a": OUT[..., :0], "out_b": OUT[..., :0]}),
        ("out_b", {"out_b": OUT.half()}),
        ("out_b", {"out_b": OUT[:, :2]}),
        ("lse_b", {"lse_b": LSE.half()}),
        ("lse_b", {"lse_b": LSE[:4]}),
        ("out", {"out": OUT.half()}),
        ("out", {"out": OUT[:4]}),
        ("lse", {"lse": LSE.double()}),
        ("lse", {"lse": LSE.T}),
    ],
)
def test_refused(device: torch.device, name: str, changes: dict[str, Tensor]) -> None:
    arguments = {"out_a": OUT, "lse_a": LSE, "out_b": OUT, "lse_b": LSE} | changes
    with pytest.raises(KernelArgumentError) as caught:
        merge_state(**{key: on(device, value) for key, value in arguments.items()})
    assert caught.value.name == name
    assert str(caught.value).startswith(f"{name} is ")


@pytest.mark.parametrize("heads", [1, 4])
def test_too_many_tokens_are_refused(device: torch.device, heads: int) -> None:
    tokens = MAX_PAIRS // heads + 1
    out = torch.zeros(1, 1, 1, device=device).expand(tokens, heads, 1)
    lse = torch.zeros(1, 1, device=device).expand(tokens, heads)
    with pytest.raises(KernelArgumentError, match="merge it in pieces"):
        merge_state(out, lse, out, lse)


def test_another_device_is_refused(device: torch.device) -> None:
    here, elsewhere = OUT.to(device), torch.zeros(5, 3, 16, device="meta")
    with pytest.raises(KernelArgumentError, match=f"move it to {device}"):
        merge_state(here, LSE.to(device), elsewhere, LSE.to(device))
    with pytest.raises(KernelArgumentError, match="is on meta"):
        merge_state(here, LSE.to(device), here, LSE.to("meta"))


# Any number of parts in one tensor


@pytest.mark.parametrize("parts", [1, 2, 9])
@pytest.mark.parametrize(("tokens", "heads", "dim"), [(5, 3, 16), (40, 7, 80), (0, 2, 16)])
def test_parts_of_one_tensor(
    state: Callable[..., State], parts: int, tokens: int, heads: int, dim: int
) -> None:
    states = [state(seed, tokens=tokens, heads=heads, dim=dim) for seed in range(parts)]
    outs, lses = (torch.stack(each) for each in zip(*states, strict=True))
    _assert_merged(merge_parts(outs, lses), outs.unbind(), lses.unbind())


def test_parts_that_saw_no_key(state: Callable[..., State]) -> None:
    some = state(0)
    empty = _empty_like(some)
    for states in ([empty, some, empty], [some, empty], [empty, some], [empty, empty]):
        outs, lses = (torch.stack(each) for each in zip(*states, strict=True))
        _assert_merged(merge_parts(outs, lses), outs.unbind(), lses.unbind())


def test_parts_with_a_nan_are_nan(state: Callable[..., State]) -> None:
    outs, lses = (torch.stack(each) for each in zip(state(0), state(1), strict=True))
    lses[1, 2, 1] = torch.nan
    out, lse = merge_parts(outs, lses)
    assert lse.isnan().nonzero().tolist() == [[2, 1]]
    assert out.isnan().all(-1).nonzero().tolist() == [[2, 1]]


def test_large_lse_of_parts_and_any_strides(device: torch.device) -> None:
    outs = torch.randn(5, 2, 3, 16, device=device).transpose(0, 2)
    lses = 1e4 + torch.randn(2, 5, 3, device=device).permute(2, 0, 1)
    _assert_merged(merge_parts(outs, lses), outs.unbind(), lses.unbind())


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("outs", ((5, 3, 16), (2, 5, 3))),
        ("outs", ((0, 5, 3, 16), (0, 5, 3))),
        ("lses", ((2, 5, 3, 16), (3, 5, 3))),
    ],
)
def test_wrong_parts_are_refused(
    device: torch.device, name: str, shapes: tuple[tuple[int, ...], ...]
) -> None:
    outs, lses = (torch.zeros(shape, device=device) for shape in shapes)
    with pytest.raises(KernelArgumentError, match=f"^{name} is "):
        merge_parts(outs, lses)


def test_without_the_interpreter_a_cpu_tensor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    with pytest.raises(KernelArgumentError, match="TRITON_INTERPRET=1 before triton"):
        merge_state(OUT, LSE, OUT, LSE)

"""The convolution of packed prompts against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from prefill_kernels.causal_conv import Taps, causal_conv
from prefill_kernels.causal_conv.configs import BLOCK_CHANNELS, BLOCK_TOKENS
from prefill_kernels.causal_conv.reference import causal_conv_reference
from prefill_kernels.errors import KernelArgumentError
from torch import Tensor

from tests.kernels.devices import on

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


class Case:
    """Random inputs of `causal_conv`; the lines of `x` are not contiguous."""

    def __init__(self, tokens: int, channels: int, width: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(tokens)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).to(device)

        self.x = draw(tokens, channels + 8)[:, :channels]
        self.held, self.weight = draw(width - 1, channels), draw(channels, width)
        self.bias = draw(channels)
        previous = torch.randint(0, tokens + width, (tokens, width - 1), generator=generator)
        order = torch.randperm(tokens, generator=generator)
        self.previous = previous.to(device, torch.int32)
        self.order = order.to(device, torch.int32)

    @property
    def taps(self) -> Taps:
        return Taps(self.order, self.previous)


@settings(max_examples=30, deadline=None)
@given(
    tokens=st.sampled_from([1, BLOCK_TOKENS, BLOCK_TOKENS + 3]),
    channels=st.sampled_from([5, BLOCK_CHANNELS, 2 * BLOCK_CHANNELS + 7]),
    width=st.integers(2, 5),
    biased=st.booleans(),
    activates=st.booleans(),
    parts=st.integers(1, 3),
)
def test_the_sums_are_those_of_the_reference(
    device: torch.device,
    dtype: torch.dtype,
    tokens: int,
    channels: int,
    width: int,
    biased: bool,
    activates: bool,
    parts: int,
) -> None:
    case = Case(tokens, channels, width, device)
    options = {"sizes": [1] * (parts - 1) + [channels - parts + 1], "activates": activates}
    taps, bias = case.taps, case.bias.to(dtype) if biased else None
    x, held, weight = (each.to(dtype) for each in (case.x, case.held, case.weight))
    found = causal_conv(x, held, taps, weight, bias, **options)
    wanted = causal_conv_reference(
        *(x.double(), held.double(), taps, weight.double()),
        None if bias is None else bias.double(),
        **options,
    )
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == dtype
        assert one.is_contiguous()
        error = TOLERANCE[dtype] * max(1.0, float(other.abs().max()))
        torch.testing.assert_close(one.double(), other, rtol=0, atol=error)


def test_what_a_token_does_not_see_may_be_nan(device: torch.device) -> None:
    case = Case(3, 12, 3, device)
    case.x[1], case.held[0] = torch.nan, torch.nan
    case.order.copy_(torch.arange(3))
    # Token 0 sees nothing but itself, token 2 the other held input and token 0.
    case.previous.copy_(torch.tensor([[5, 5], [0, 0], [4, 0]]))
    found = causal_conv(case.x, case.held, case.taps, case.weight, None, sizes=[4, 3, 5])
    for part in found:
        assert part[[0, 2]].isfinite().all()
        assert part[1].isnan().all()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("held", {"held": torch.zeros(2, 12)}),
        ("held", {"held": torch.zeros(12, 3).T}),
        ("held", {"held": torch.zeros(3, 20)[:, :12]}),
        ("held", {"held": torch.zeros(3, 12).half()}),
        ("weight", {"weight": torch.zeros(12, 1)}),
        ("weight", {"weight": torch.zeros(11, 4)}),
        ("weight", {"weight": torch.zeros(4, 12).T}),
        ("weight", {"weight": torch.zeros(12, 8)[:, :4]}),
        ("weight", {"weight": torch.zeros(12, 4).int()}),
        ("previous", {"previous": torch.zeros(3, 3)}),
        ("previous", {"previous": torch.zeros(3, 3).long()}),
        ("previous", {"previous": torch.zeros(3, 2).int()}),
        ("previous", {"previous": torch.zeros(2, 3).int()}),
        ("previous", {"previous": torch.zeros(3, 6).int()[:, :3]}),
        ("order", {"order": torch.zeros(2).int()}),
        ("order", {"order": torch.zeros(3).long()}),
        ("bias", {"bias": torch.zeros(1)}),
        ("bias", {"bias": torch.zeros(12).int()}),
        ("x", {"x": torch.zeros(3, 12).int()}),
        ("x", {"x": torch.zeros(0, 12)}),
        ("x", {"x": torch.zeros(12, 3).T}),
        ("sizes", {"sizes": [6, 5]}),
        ("sizes", {"sizes": [12, 0]}),
        ("sizes", {"sizes": [4, 4, 2, 2]}),
        ("sizes", {"sizes": []}),
    ],
)
def test_impossible_arguments_are_named_also_behind_possible_ones(
    device: torch.device, name: str, changes: dict[str, Tensor | list[int]]
) -> None:
    case = Case(3, 12, 4, device)
    causal_conv(case.x, case.held, case.taps, case.weight, case.bias, sizes=[12])
    given = {**vars(case), "sizes": [12]} | {
        key: on(device, value) if isinstance(value, Tensor) else value
        for key, value in changes.items()
    }
    taps = Taps(given["order"], given["previous"])
    inputs = (given["x"], given["held"], taps, given["weight"], given["bias"])
    with pytest.raises(KernelArgumentError) as raised:
        causal_conv(*inputs, sizes=given["sizes"])
    assert raised.value.name == name

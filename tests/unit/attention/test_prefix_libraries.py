"""What attention libraries return, converted, against attention by definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from sglang_prefill_ext.attention.inputs import LayerInputs
from sglang_prefill_ext.attention.prefix_libraries import (
    LIBRARIES,
    LibraryPrefixes,
    library_obstacle,
)
from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.forward.upload import upload
from sglang_prefill_ext.layout.tokens import ForwardLayout, GroupSpan
from tests.unit.attention import fake_libraries
from tests.unit.attention.reference import attend

HEADS, KEY_HEADS, DIM, VALUE_DIM = 4, 2, 8, 6
SCALE = 0.3
HALF = (torch.bfloat16, torch.float16)


def layout_of(*groups: tuple[int, int, list[int]]) -> ForwardLayout:
    return ForwardLayout(
        tuple(GroupSpan(held, fresh, np.array(lens, np.int32)) for held, fresh, lens in groups)
    )


LAYOUTS = {
    "fresh": layout_of((0, 3, [1, 2])),
    "held": layout_of((4, 0, [2, 1])),
    "both, and groups without a prefix": layout_of(
        (0, 0, [2]), (3, 2, [1, 2]), (0, 4, [1]), (0, 0, [1, 1]), (2, 3, [])
    ),
}


def attend_prefixes(
    way: AttentionWay, layout: ForwardLayout, scale: float = SCALE
) -> tuple[tuple[Tensor, Tensor] | None, list[tuple[Tensor, Tensor, Tensor]]]:
    """What a library makes of a layout, and by definition each token's query, keys and values."""
    generator = torch.Generator().manual_seed(layout.num_tokens)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    tokens, num_held = layout.num_tokens, sum(group.held for group in layout.groups)
    inputs = LayerInputs(
        draw(tokens, HEADS, DIM),
        draw(tokens, KEY_HEADS, DIM),
        draw(tokens, KEY_HEADS, VALUE_DIM),
        scale,
    )
    pool = draw(2 * num_held, KEY_HEADS, DIM), draw(2 * num_held, KEY_HEADS, VALUE_DIM)
    slots = torch.randperm(2 * num_held, generator=generator)[:num_held].int()
    prefixes = LibraryPrefixes(layout, way)
    prefixes.bind(upload(prefixes.host_arrays(), torch.device("cpu")), slots if num_held else None)
    part = prefixes.forward(inputs, pool if num_held else None)
    wanted, first_held = [], 0
    for group, start in zip(layout.groups, layout.group_starts.tolist(), strict=True):
        held = slots[first_held : first_held + group.held]
        first_held += group.held
        for token in range(start, start + group.num_tokens):
            fresh = slice(start, start + group.fresh * (token >= start + group.fresh))
            k, v = (
                torch.cat([x[held], y[fresh]])
                for x, y in zip(pool, (inputs.k, inputs.v), strict=True)
            )
            wanted.append((inputs.q[token], k, v))
    return part, wanted


@pytest.mark.parametrize("way", LIBRARIES)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_one_call_attends_to_the_prefixes_of_all_groups(
    way: AttentionWay, layout: ForwardLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_libraries.install(monkeypatch)
    part, wanted = attend_prefixes(way, layout)
    assert part is not None
    out, lse = part
    assert out.shape == (layout.num_tokens, HEADS, VALUE_DIM)
    assert (lse.shape, lse.dtype) == ((layout.num_tokens, HEADS), torch.float32)
    for token, (q, k, v) in enumerate(wanted):
        if not len(k):
            assert lse[token].isneginf().all()
            continue
        exact, exact_lse = attend(q, k, v, SCALE)
        torch.testing.assert_close(out[token].double(), exact, atol=1e-5, rtol=0)
        torch.testing.assert_close(lse[token].double(), exact_lse, atol=1e-5, rtol=0)


@pytest.mark.parametrize("way", LIBRARIES)
def test_without_prefixes_no_library_is_called(
    way: AttentionWay, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_libraries.install(monkeypatch)
    part, _ = attend_prefixes(way, layout_of((0, 0, [3, 1])))
    assert part is None


def test_plans_of_forwards_in_flight_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_libraries.install(monkeypatch)
    planned: list[object] = []
    wrapper = fake_libraries.BatchPrefillWithRaggedKVCacheWrapper
    plan = wrapper.plan
    monkeypatch.setattr(
        wrapper,
        "plan",
        lambda self, *args, **kwargs: planned.append(self) or plan(self, *args, **kwargs),
    )
    layout = LAYOUTS["fresh"]
    for _ in range(3):
        prefixes = LibraryPrefixes(layout, AttentionWay.MERGE_FLASHINFER)
        prefixes.bind(upload(prefixes.host_arrays(), torch.device("cpu")), None)
        for scale in (0.1, 0.2, 0.3, 0.1, 0.2, 0.3):  # of two layers each
            q, kv = torch.ones(layout.num_tokens, 2, 4), torch.ones(layout.num_tokens, 1, 4)
            prefixes.forward(LayerInputs(q, kv, kv, scale), None)
    assert len(planned) == len({id(each) for each in planned}) == 3 * 3


# Where they may be used


def test_without_cuda_there_is_none() -> None:
    obstacle = library_obstacle(torch.bfloat16, torch.device("cpu"))
    assert obstacle == "the model is on cpu, not on a CUDA device"


@pytest.mark.parametrize("dtype", [*HALF, torch.float32])
@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0)])
def test_on_hopper_half_precision_may_be_tried(
    dtype: torch.dtype, capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def capability_of(_device: torch.device) -> tuple[int, int]:
        return capability

    monkeypatch.setattr(torch.cuda, "get_device_capability", capability_of)
    obstacle = library_obstacle(dtype, torch.device("cuda"))
    if capability == (9, 0) and dtype in HALF:
        assert obstacle == ""
    elif capability != (9, 0):
        assert f"compute capability {capability[0]}.0, not 9.0" in obstacle
    else:
        assert obstacle == "the model is in torch.float32, not in half precision"

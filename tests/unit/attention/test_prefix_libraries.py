"""What attention libraries return, converted, against attention by definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.attention.merge import merge_states
from sglang_prefill_ext.attention.prefix_libraries import (
    LIBRARIES,
    library_obstacle,
    natural_of_base_2,
    tokens_first,
)
from sglang_prefill_ext.config import AttentionWay
from tests.unit.attention import fake_libraries
from tests.unit.attention.reference import attend

HEADS, KEY_HEADS, DIM, VALUE_DIM = 4, 2, 8, 6
SCALE = 0.3
HALF = (torch.bfloat16, torch.float16)


@given(st.lists(st.floats(-80, 80, width=32), min_size=1, max_size=9))
def test_base_2_becomes_natural(scores: list[float]) -> None:
    exact = torch.tensor(scores, dtype=torch.float64).logsumexp(0)
    base_2 = torch.tensor(np.log2(np.exp(scores).sum()), dtype=torch.float32)
    assert float(natural_of_base_2(base_2)) == pytest.approx(float(exact), abs=2e-5)


def test_no_key_stays_no_key() -> None:
    assert float(natural_of_base_2(torch.tensor(-math.inf))) == -math.inf


@given(st.integers(0, 5), st.integers(1, 4))
def test_tokens_come_first_without_a_copy(tokens: int, heads: int) -> None:
    lse = torch.arange(heads * tokens, dtype=torch.float32).view(heads, tokens)
    turned = tokens_first(lse)
    assert turned.shape == (tokens, heads)
    assert turned.data_ptr() == lse.data_ptr()
    for token in range(tokens):
        assert torch.equal(turned[token], lse[:, token])


@pytest.mark.parametrize("way", LIBRARIES)
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (3, 7), (5, 2)])
def test_a_library_and_the_rest_merge_to_attention_over_all_keys(
    way: AttentionWay, queries: int, keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_libraries.install(monkeypatch)
    generator = torch.Generator().manual_seed(queries)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    q, k = draw(queries, HEADS, DIM), draw(keys + 1, KEY_HEADS, DIM)
    v = draw(keys + 1, KEY_HEADS, VALUE_DIM)
    out, lse = LIBRARIES[way](q, k[:keys], v[:keys], SCALE)
    assert out.shape == (queries, HEADS, VALUE_DIM)
    assert (lse.shape, lse.dtype) == ((queries, HEADS), torch.float32)
    rest = [attend(query, k[keys:], v[keys:], SCALE) for query in q]
    rest_out, rest_lse = (torch.stack(x).float() for x in zip(*rest, strict=True))
    merged, merged_lse = merge_states(out, lse, rest_out, rest_lse)
    for token in range(queries):
        exact, exact_lse = attend(q[token], k, v, SCALE)
        torch.testing.assert_close(merged[token].double(), exact, atol=1e-5, rtol=0)
        torch.testing.assert_close(merged_lse[token].double(), exact_lse, atol=1e-5, rtol=0)


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

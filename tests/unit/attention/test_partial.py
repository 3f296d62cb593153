"""Both paths of partial attention against one query at a time in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sglang_prefill_ext.attention import partial
from sglang_prefill_ext.errors import PackingError
from tests.unit.attention.reference import attend

SCALE = 0.3
Path = Callable[[Tensor, Tensor, Tensor, float, Tensor | None, bool], tuple[Tensor, Tensor]]
both_paths = pytest.mark.parametrize("path", [partial._flash_cpu, partial._matmul])


def _inputs(
    batch: int, queries: int, keys: int, heads: tuple[int, int] = (4, 2), dims: int = 16
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(batch * 1000 + queries + keys)
    shapes = ((queries, heads[0]), (keys, heads[1]), (keys, heads[1]))
    q, k, v = (torch.randn(batch, n, h, dims, generator=generator) for n, h in shapes)
    return q, k, v


def _assert_right(
    result: tuple[Tensor, Tensor], q: Tensor, k: Tensor, v: Tensor, visible: Tensor
) -> None:
    """`visible` is bool `[B, M, K]`."""
    out, lse = result
    assert out.shape == (*q.shape[:3], v.shape[3])
    assert lse.shape == q.shape[:3]
    assert lse.dtype == torch.float32
    for b in range(q.shape[0]):
        for m in range(q.shape[1]):
            seen = visible[b, m]
            expected_out, expected_lse = attend(q[b, m], k[b, seen], v[b, seen], SCALE)
            torch.testing.assert_close(out[b, m].double(), expected_out, atol=2e-6, rtol=0)
            torch.testing.assert_close(lse[b, m].double(), expected_lse, atol=2e-6, rtol=0)


@both_paths
@pytest.mark.parametrize("heads", [(2, 2), (4, 2), (4, 1)])
@pytest.mark.parametrize("dims", [16, 64])
def test_all_keys(path: Path, heads: tuple[int, int], dims: int) -> None:
    q, k, v = _inputs(2, 5, 9, heads, dims)
    everything = torch.ones(2, 5, 9, dtype=torch.bool)
    _assert_right(path(q, k, v, SCALE, None, False), q, k, v, everything)


@both_paths
def test_causal(path: Path) -> None:
    q, k, v = _inputs(2, 40, 40)
    triangle = torch.ones(2, 40, 40, dtype=torch.bool).tril()
    _assert_right(path(q, k, v, SCALE, None, True), q, k, v, triangle)


@both_paths
@pytest.mark.parametrize("masks", [1, 2])
def test_mask(path: Path, masks: int) -> None:
    q, k, v = _inputs(2, 6, 11)
    visible = torch.rand(masks, 6, 11, generator=torch.Generator().manual_seed(0)) < 0.5
    visible[:, :, 3] = True
    mask = torch.zeros(visible.shape).masked_fill(~visible, -torch.inf)
    _assert_right(path(q, k, v, SCALE, mask, False), q, k, v, visible.expand(2, -1, -1))


@both_paths
def test_any_strides(path: Path) -> None:
    q, k, v = (x.transpose(1, 3).contiguous().transpose(1, 3) for x in _inputs(2, 5, 9))
    assert q.stride(-1) != 1
    everything = torch.ones(2, 5, 9, dtype=torch.bool)
    _assert_right(path(q, k, v, SCALE, None, False), q, k, v, everything)


@pytest.mark.parametrize("score_bytes", [1, 4 * 4 * 40 * 7, 4 * 4 * 40 * 100])
@pytest.mark.parametrize("kind", ["all", "causal", "mask", "mask of each"])
def test_matmul_within_a_small_budget(
    monkeypatch: pytest.MonkeyPatch, score_bytes: int, kind: str
) -> None:
    q, k, v = _inputs(3, 40, 40)
    visible = torch.rand(3, 40, 40, generator=torch.Generator().manual_seed(0)) < 0.5
    mask = torch.zeros(visible.shape).masked_fill_(~visible, -torch.inf)
    mask.diagonal(dim1=1, dim2=2).zero_()
    bias = {"mask": mask[:1], "mask of each": mask}.get(kind)
    expected = partial._matmul(q, k, v, SCALE, bias, kind == "causal")
    monkeypatch.setattr(partial, "SCORE_BYTES", score_bytes)
    chunked = partial._matmul(q, k, v, SCALE, bias, kind == "causal")
    torch.testing.assert_close(chunked, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("sequences", "queries", "keys"), [(1, 1000, 50), (70, 9, 300), (3, 5, 7)])
def test_chunks_cover_everything_once_within_the_budget(
    monkeypatch: pytest.MonkeyPatch, sequences: int, queries: int, keys: int
) -> None:
    budget = 100_000
    monkeypatch.setattr(partial, "SCORE_BYTES", budget)
    seen = torch.zeros(sequences, queries, dtype=torch.int64)
    for batch, part in partial._chunks(torch.empty(sequences, queries, 4, 16), keys):
        seen[batch, part] += 1
        assert 4 * 4 * keys * (batch.stop - batch.start) * (part.stop - part.start) <= budget
    assert torch.equal(seen, torch.ones_like(seen))


def test_another_value_size_than_key_size() -> None:
    q, k, _ = _inputs(2, 5, 9)
    v = torch.randn(2, 9, 2, 24, generator=torch.Generator().manual_seed(1))
    result = partial.partial_attention(q, k, v, SCALE)
    _assert_right(result, q, k, v, torch.ones(2, 5, 9, dtype=torch.bool))


def test_heads_that_cannot_share() -> None:
    with pytest.raises(PackingError, match="4 query heads cannot share 3 key heads"):
        partial.partial_attention(*_inputs(1, 2, 2, heads=(4, 3)), SCALE)

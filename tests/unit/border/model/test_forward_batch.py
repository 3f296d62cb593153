"""The batch that a packed forward is to SGLang's layers."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sglang.srt.models import utils

    from sglang_prefill_ext.border.model import decoder_model


def batch_of(row_lens: list[int]) -> decoder_model.PackedForwardBatch:
    total = sum(row_lens)
    tokens = torch.arange(total)
    zeros = torch.zeros(total, dtype=torch.int64)
    return decoder_model._forward_batch(tokens, tokens, row_lens, zeros)


def test_rows_have_no_slot_and_no_prefix() -> None:
    batch = batch_of([3, 1])
    assert (batch.batch_size, batch.extend_num_tokens, batch.seq_lens_sum) == (2, 4, 4)
    assert batch.seq_lens.tolist() == batch.extend_seq_lens.tolist() == [3, 1]
    assert batch.out_cache_loc.tolist() == [0] * 4
    assert batch.req_pool_indices.tolist() == batch.extend_prefix_lens.tolist() == [0, 0]
    assert batch.extend_prefix_lens.dtype == torch.int32


def test_no_model_stores_keys_while_it_rotates(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA some would write those of every packed token to slot 0, one after the other."""
    pool = SimpleNamespace(dtype=torch.bfloat16)
    monkeypatch.setattr(utils, "_is_cuda", True)
    monkeypatch.setattr(utils, "get_token_to_kv_pool", lambda: pool)
    monkeypatch.setattr(utils, "is_cp_active", lambda _batch: False)
    stock = SimpleNamespace(dcp_kv_mask=None)
    assert utils.enable_fused_set_kv_buffer(stock) is True
    assert not utils.enable_fused_set_kv_buffer(batch_of([2]))


def test_forwards_share_what_nobody_writes_to() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    tiny = SimpleNamespace(_some_zeros=none, device=none.device)
    first = decoder_model.SglangModel._zeros(tiny, 5)
    shorter, longer = (
        decoder_model.SglangModel._zeros(tiny, 3),
        decoder_model.SglangModel._zeros(tiny, 9),
    )
    assert [each.tolist() for each in (first, shorter, longer)] == [[0] * 5, [0] * 3, [0] * 9]
    assert shorter.data_ptr() == first.data_ptr()

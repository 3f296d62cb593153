"""What SGLang's layers get as the batch of a packed forward."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.models import utils

from sglang_prefill_ext.border.model.packed_batch import packed_batch_of


def test_no_model_stores_keys_while_it_rotates(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA, some models would otherwise write the keys of every packed token to slot 0."""
    pool = SimpleNamespace(dtype=torch.bfloat16)
    monkeypatch.setattr(utils, "_is_cuda", True)
    monkeypatch.setattr(utils, "get_token_to_kv_pool", lambda: pool)
    monkeypatch.setattr(utils, "is_cp_active", lambda _batch: False)
    stock = SimpleNamespace(dcp_kv_mask=None)
    assert utils.enable_fused_set_kv_buffer(stock) is True
    tokens = torch.arange(2)
    assert not utils.enable_fused_set_kv_buffer(
        packed_batch_of(tokens, tokens, [2], torch.zeros_like(tokens))
    )

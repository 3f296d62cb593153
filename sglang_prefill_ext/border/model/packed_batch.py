"""The batch of a packed forward, as SGLang's layers see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
)
from torch import Tensor

from sglang_prefill_ext.forward.upload import upload


def without_adapters(*, shortened: bool) -> None:
    """`PackedForwardBatch.adapt` on a server without LoRA adapters."""


@dataclass
class PackedForwardBatch(ForwardBatch):  # type: ignore[misc]
    """A `ForwardBatch` with what `PackedAttentionBackend` reads and writes."""

    # Declared fields, because SGLang copies batches with `dataclasses.replace`.
    attend: Any = None
    read_at: Any = None
    adapt: Any = without_adapters  # called before layers, see `Adapters.apply_to`
    recur: Any = None
    latents: Any = None  # of the layer that runs, if it has latent attention
    shared: Any = None  # keys and values by layer, of layers whose number later ones have, too


def packed_batch_of(
    token_ids: Tensor, positions: Tensor, row_lens: list[int], zeros: Tensor
) -> PackedForwardBatch:
    """A batch of rows without KV slots; every token gets slot 0, which SGLang uses for padding.

    Args:
        zeros: int64 ``[tokens]``.
    """
    device, rows, total = token_ids.device, len(row_lens), len(token_ids)
    (lens,) = upload([np.array(row_lens, dtype=np.int32)], device)
    return PackedForwardBatch(
        forward_mode=ForwardMode.EXTEND,
        batch_size=rows,
        input_ids=token_ids,
        positions=positions,
        req_pool_indices=zeros[:rows],
        seq_lens=lens,
        seq_lens_sum=total,
        out_cache_loc=zeros,
        extend_num_tokens=total,
        extend_seq_lens=lens,
        extend_seq_lens_cpu=row_lens,
        extend_prefix_lens=zeros.view(torch.int32)[:rows],
        extend_prefix_lens_cpu=[0] * rows,
        capture_hidden_mode=CaptureHiddenMode.NULL,
        global_num_token_non_padded_cpu=total,
        is_prefill_only=True,
        # With a mask, models leave storing K/V to the attention backend, and ours stores none.
        # Without it, some models would write all K/V to slot 0 together with the rotary embedding.
        dcp_kv_mask=zeros,
        shared={},
    )

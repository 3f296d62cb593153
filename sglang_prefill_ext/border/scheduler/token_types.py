"""Hook by which an encoder can compute prompts with and without token types in one batch."""

from __future__ import annotations

from typing import Any

import torch


def type_all_tokens(_result: None, forward_batch: Any, batch: Any) -> None:
    """AFTER `ForwardBatch._maybe_init_non_generation_fields`: each token of a batch has a type.

    SGLang joins the types of the requests that have some, and so gets too few or, if one of them is
    refused and only its first token computed, too many. 0 is the type where no request has any.
    """
    types = forward_batch.token_type_ids
    if types is None or not batch.is_prefill_only or len(types) == batch.extend_num_tokens:
        return
    joined: list[int] = []
    for request, tokens in zip(batch.reqs, batch.extend_lens, strict=True):
        joined += (request.token_type_ids or [0] * tokens)[:tokens]
    forward_batch.token_type_ids = torch.tensor(joined, dtype=types.dtype, device=types.device)

"""The LoRA adapter of a packed forward, put where SGLang's layers look for that of a batch."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode

from sglang_prefill_ext.errors import PackedForwardError


class Adapters:
    """The adapters of a rank.

    A packed forward is to them one sequence with one adapter. What is said of it holds until the
    next batch, of either path, says something else. Every launch of either path does, so none
    sees another's.

    Args:
        manager: SGLang's `LoRAManager`; None on a server without adapters.
    """

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def load(self, adapter: str) -> None:
        """Bring an adapter into the pool, evicting those that the next batches reload if need be.

        Raises:
            PackedForwardError: it is not loaded, or not any more, which happens only when nobody
                waits for the answer.
        """
        if not adapter:
            return
        if self._manager is None or adapter not in self._manager.loras:
            raise PackedForwardError(f"adapter: {adapter!r} is not loaded; send its name again")
        self._manager.fetch_new_loras({adapter})

    def apply_to(self, tokens: int, adapter: str) -> None:
        """Let the layers from here on apply a loaded adapter, or none, to so many tokens."""
        if adapter:
            self._manager.prepare_lora_batch(_one_sequence(tokens, adapter, self._manager.device))
        elif self._manager is not None:
            self._manager.reset_lora_batch()


def _one_sequence(tokens: int, adapter: str, device: torch.device) -> ForwardBatch:
    """What adapters look at of a batch."""
    return ForwardBatch(
        forward_mode=ForwardMode.EXTEND,
        batch_size=1,
        input_ids=None,
        req_pool_indices=None,
        seq_lens=None,
        out_cache_loc=None,
        seq_lens_sum=tokens,
        extend_num_tokens=tokens,
        extend_seq_lens=torch.full((1,), tokens, dtype=torch.int32, device=device),
        extend_seq_lens_cpu=[tokens],
        lora_ids=[adapter],
    )

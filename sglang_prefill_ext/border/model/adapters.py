"""LoRA adapters of packed forwards, as SGLang's layers see them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode

from sglang_prefill_ext.errors import PackedForwardError
from sglang_prefill_ext.forward.model import Adapted
from sglang_prefill_ext.forward.upload import upload


class Adapters:
    """The LoRA adapters of a rank.

    For SGLang's LoRA layers, every part of a packed forward is a sequence with one adapter. What is
    set stays in effect until the next batch sets its own. Every batch of either path does so before
    its launch, so none uses adapters of another batch.

    Args:
        manager: SGLang's `LoRAManager`; None on a server without adapters.
    """

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def fit(self, adapters: Collection[str]) -> bool:
        """Whether SGLang's memory pool has room for all these adapters at once.

        The model itself, an empty name, takes room beside adapters, too. Those that are not loaded
        (any more) fit beside no others, so their forwards fail alone. All ranks have loaded and
        pinned the same adapters.
        """
        if len(adapters) == 1:
            return True
        if self._missing(adapters):
            return False
        return bool(self._manager.validate_lora_batch(_ids(adapters)))

    def load(self, parts: Sequence[Adapted]) -> None:
        """Load the adapters of a forward into SGLang's memory pool, evicting others if need be.

        Batches that need an evicted adapter load it again.

        Raises:
            PackedForwardError: the server does not have an adapter (any more). That happens only if
                the client no longer waits for the answer.
        """
        adapters = {part.adapter for part in parts}
        for adapter in self._missing(adapters):
            raise PackedForwardError(f"adapter: {adapter!r} is not loaded; send its name again")
        if adapters:
            self._manager.fetch_new_loras(_ids(adapters))

    def apply_to(self, parts: Sequence[Adapted], *, shortened: bool) -> None:
        """Make the following layers apply loaded adapters, or none if there are no parts.

        Args:
            shortened: these layers compute the reads alone.
        """
        if parts:
            lens = [part.reads if shortened else part.tokens for part in parts]
            self._manager.prepare_lora_batch(self._batch_of(parts, lens))
        elif self._manager is not None:
            self._manager.reset_lora_batch()

    def _missing(self, adapters: Collection[str]) -> set[str]:
        """Those of the adapters that are not loaded (any more)."""
        loaded = () if self._manager is None else self._manager.loras
        return {*adapters} - {"", *loaded}

    def _batch_of(self, parts: Sequence[Adapted], lens: list[int]) -> ForwardBatch:
        """A batch with only the fields that SGLang's adapters read."""
        present = [(part, length) for part, length in zip(parts, lens, strict=True) if length]
        lens = [length for _, length in present]
        (lens_there,) = upload([np.array(lens, dtype=np.int32)], self._manager.device)
        return ForwardBatch(
            forward_mode=ForwardMode.EXTEND,
            batch_size=len(lens),
            input_ids=None,
            req_pool_indices=None,
            seq_lens=None,
            out_cache_loc=None,
            seq_lens_sum=sum(lens),
            extend_num_tokens=sum(lens),
            extend_seq_lens=lens_there,
            extend_seq_lens_cpu=lens,
            lora_ids=[part.adapter or None for part, _ in present],
        )


def _ids(adapters: Collection[str]) -> set[str | None]:
    """The names by which SGLang knows adapters, and the model itself."""
    return {adapter or None for adapter in adapters}

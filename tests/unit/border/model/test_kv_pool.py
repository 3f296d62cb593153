"""Slots of SGLang's allocator that prefixes take and give back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

from sglang_prefill_ext.border.model.kv_pool import SglangPool, SglangRoom

SLOTS = 64


def room_of(page: int) -> tuple[SglangRoom, Any]:
    """A room whose allocator has pages of so many slots, and that allocator."""
    pool = MHATokenToKVPool(
        SLOTS, page, torch.float32, 1, 1, 1, "cpu", False, enable_alt_stream=False
    )
    if page == 1:
        allocator: Any = TokenToKVPoolAllocator(SLOTS, torch.float32, "cpu", pool, False)
    else:
        allocator = PagedTokenToKVPoolAllocator(SLOTS, page, torch.float32, "cpu", pool, False)
    allocator.evict_to_free_tokens = lambda _tree, _tokens: None
    tree = SimpleNamespace(evictable_size=lambda: 0)
    scheduler = SimpleNamespace(tree_cache=tree, token_to_kv_pool_allocator=allocator)
    return SglangRoom(scheduler, SglangPool(pool)), allocator


@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize("kept", [0, 8])
def test_slots_are_given_back_without_a_look_at_them(
    monkeypatch: pytest.MonkeyPatch, page: int, kept: int
) -> None:
    room, allocator = room_of(page)
    slots = room.take(14)  # of 4 pages if they have 4 slots, the last of them half
    assert slots is not None

    def waits(*_inputs: object, **_options: object) -> None:
        raise AssertionError("how many there are is known only when the device has found them")

    monkeypatch.setattr(torch, "unique", waits)
    room.give_back(slots[kept:])
    assert allocator.available_size() == SLOTS - kept
    again = room.take_last(SLOTS - kept)
    assert again is not None
    assert len(set(again.tolist()) | set(slots[:kept].tolist())) == SLOTS

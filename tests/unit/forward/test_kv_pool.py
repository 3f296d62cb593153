from __future__ import annotations

import torch

from sglang_prefill_ext.attention.inputs import HeadShape
from sglang_prefill_ext.forward.kv_pool import SHARE, OwnPool, PrivateSlots
from sglang_prefill_ext.scheduling.budget import ForwardBudget

HEADS = HeadShape(num_heads=4, num_key_heads=2, head_dim=8, value_dim=6)
LAYERS = 3
BYTES_PER_TOKEN = LAYERS * 2 * (8 + 6) * 2


def pool_for(tokens: int) -> OwnPool:
    pool = OwnPool(dict.fromkeys(range(LAYERS), HEADS), torch.bfloat16, torch.device("cpu"))
    left = pool.set_aside(ForwardBudget(100, max_bytes=SHARE * tokens * BYTES_PER_TOKEN))
    assert left.max_bytes == (SHARE - 1) * tokens * BYTES_PER_TOKEN
    return pool


def test_a_share_of_the_memory_of_forwards_is_set_aside() -> None:
    assert pool_for(40).capacity == 40
    assert PrivateSlots(pool_for(40)).capacity == 40


def test_one_prefix_at_a_time_and_none_longer_than_its_share() -> None:
    slots = PrivateSlots(pool_for(40))
    too_long, first, second = (slots.begin_private(tokens) for tokens in (41, 30, 5))
    assert not too_long.reserve(whole=True)
    too_long.rollback()
    assert first.reserve(whole=True)
    assert len(first.slots) == 30
    assert not second.reserve(whole=True)
    second.rollback()
    assert not slots.begin_private(5).reserve(whole=True), "the first one still has the memory"
    first.commit()
    assert slots.begin_private(5).reserve(whole=True)


def test_what_needs_no_room_between_forwards_takes_none() -> None:
    slots = PrivateSlots(pool_for(40))
    one = slots.begin(torch.zeros(50, dtype=torch.int32).numpy(), keep=True)
    assert one.reserve(whole=False)
    assert (one.cached, len(one.slots)) == (0, 0)
    one.commit()
    assert slots.begin_private(40).reserve(whole=True)


def test_what_is_stored_is_what_is_read_and_memory_is_there_as_long_as_slots_are_taken() -> None:
    pool = pool_for(40)
    slots = pool.take(10)
    assert slots is not None
    k, v = torch.randn(10, 2, 8).bfloat16(), torch.randn(10, 2, 6).bfloat16()
    for part in (slots[:4], slots[4:]):
        pool.store(1, part, k[part], v[part])
    keys, values = pool.buffers(1)
    assert torch.equal(keys, k)
    assert torch.equal(values, v)
    assert keys.data_ptr() == pool.buffers(1)[0].data_ptr()
    pool.give_back(slots)
    assert pool.take(20) is not None
    assert len(pool.buffers(1)[0]) == 20


def test_layers_have_heads_of_their_own() -> None:
    wide = HeadShape(num_heads=4, num_key_heads=1, head_dim=16, value_dim=16)
    pool = OwnPool({0: HEADS, 5: wide}, torch.float32, torch.device("cpu"))
    assert pool.bytes_per_token == 4 * (2 * (8 + 6) + 16 + 16)
    pool.set_aside(ForwardBudget(100, max_bytes=SHARE * 10 * pool.bytes_per_token))
    assert pool.take(10) is not None
    sizes = [tuple(part.shape) for layer in (0, 5) for part in pool.buffers(layer)]
    assert sizes == [(10, 2, 8), (10, 2, 6), (10, 1, 16), (10, 1, 16)]

from __future__ import annotations

import torch
from torch import Tensor

from sglang_prefill_ext.oneshot.held import HeldPrefix

K, V = torch.arange(12.0).view(6, 1, 2), torch.arange(6.0).view(6, 1, 1)


def is_same(pair: tuple[Tensor, Tensor], tokens: slice) -> bool:
    return torch.equal(pair[0], K[tokens]) and torch.equal(pair[1], V[tokens])


def test_the_first_part_is_copied() -> None:
    held = HeldPrefix()
    held.keep(3, None, K[1:3], V[1:3])
    assert is_same(held.load(3), slice(1, 3))
    for kept in held.load(3):
        assert kept.untyped_storage().nbytes() == kept.nbytes


def test_later_parts_follow_what_was_held() -> None:
    held = HeldPrefix()
    held.keep(0, (K[:2], V[:2]), K[2:], V[2:])
    held.keep(1, None, K, V)
    assert is_same(held.load(0), slice(0, 6))
    assert is_same(held.load(1), slice(0, 6))


def test_without_a_new_part_what_was_held_goes_on() -> None:
    held, before = HeldPrefix(), (K[:2], V[:2])
    held.keep(0, before, K[:0], V[:0])
    assert held.load(0) is before

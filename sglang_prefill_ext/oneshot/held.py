"""K/V that one forward of a request leaves to the next."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

KeyValue: TypeAlias = tuple[Tensor, Tensor]
"""Keys ``[tokens, KH, D]`` and values ``[tokens, KH, Dv]`` of one layer."""


class HeldPrefix:
    """K/V of a request's prefix, dense by layer."""

    def __init__(self) -> None:
        self.layers: dict[int, KeyValue] = {}

    def load(self, layer: int) -> KeyValue:
        return self.layers[layer]

    def keep(self, layer: int, before: KeyValue | None, k: Tensor, v: Tensor) -> None:
        """Keep what was held before, and then ``k`` and ``v`` of this forward.

        Copies: a view would keep all K/V of the forward in memory.
        """
        if before is None:
            self.layers[layer] = k.clone(), v.clone()
        elif not len(k):
            self.layers[layer] = before
        else:
            self.layers[layer] = torch.cat((before[0], k)), torch.cat((before[1], v))

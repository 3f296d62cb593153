"""Launch two entries of the tuned tables for one call, of which only one computes anything.

A program of SGLang's fused kernel first reads the number of rows, and returns if its own rows are
beyond it. So if the number of rows of an entry is 0, its launch computes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from sglang_prefill_ext.forward.expert_blocks import leave_one
from sglang_prefill_ext.moe.policy import Pair

_ALIGNMENT, _CONFIG = slice(9, 12), 14
"""Positions of the arguments of `invoke_fused_moe_kernel`: rows, experts of blocks and the number
of padded rows; and the configuration."""


class Prepared(NamedTuple):
    """What `_prepare_fused_moe_run` returns."""

    config: dict[str, Any]
    down_config: dict[str, Any] | None
    down_tma: bool
    up_tma: bool
    rows: Tensor
    experts: Tensor
    padded: Tensor


class PairedConfig(dict[str, Any]):
    """The first entry's configuration of a product, which also carries the second entry's launch.

    SGLang passes it on unchanged to `invoke_fused_moe_kernel`.

    Attributes:
        other: the configuration of the second entry.
        other_tma: whether the second entry reads its weights by TMA.
        alignment: rows, experts of blocks, and number of padded rows of the second entry.
    """

    def __init__(self, own: dict[str, Any], other: dict[str, Any], second: Prepared, tma: bool):
        super().__init__(own)
        self.other, self.other_tma = other, tma
        self.alignment = (second.rows, second.experts, second.padded)


def prepared_pair(prepare: Callable[[int], Any], pair: Pair) -> Prepared:
    """Align for both entries, choose on the device, and return the first entry's preparation.

    Its configurations carry the second entry, see `PairedConfig`.

    Args:
        prepare: SGLang's own preparation, given the tokens of an entry.
    """
    first = Prepared(*prepare(pair.first.tokens))
    second = Prepared(*prepare(pair.second.tokens))
    # With TMA, rows between the products are in the order of one entry's blocks.
    assert (first.down_tma, second.down_tma) == (False, False), pair
    leave_one(pair, (first.experts, first.padded), (second.experts, second.padded))
    up = PairedConfig(first.config, second.config, second, second.up_tma)
    downs = first.down_config or first.config, second.down_config or second.config
    return first._replace(config=up, down_config=PairedConfig(*downs, second, tma=False))


def with_both_entries(original: Callable[..., Any], *args: Any, **flags: Any) -> None:
    """AROUND `invoke_fused_moe_kernel`, which a layer's experts call for each product.

    For a pair, launch the first entry and then the second.
    """
    original(*args, **flags)
    config = args[_CONFIG]
    if isinstance(config, PairedConfig):
        second = list(args)
        second[_ALIGNMENT], second[_CONFIG] = config.alignment, config.other
        original(*second, **{**flags, "b_use_tma": config.other_tma})

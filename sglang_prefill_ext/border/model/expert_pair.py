"""Two entries of the tuned tables launched for one call, of which the device computes one.

A program of SGLang's fused kernel first reads how many rows there are, and returns if its own lie
behind them. So an alignment without rows costs a launch, and nothing is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from sglang_prefill_ext.forward.expert_choice import leave_one
from sglang_prefill_ext.moe.policy import Pair

_ALIGNMENT, _CONFIG = slice(9, 12), 14
"""Where `invoke_fused_moe_kernel` gets rows, experts of blocks and padded rows; and the entry."""


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
    """The first entry's configuration of a product, as SGLang passes it to the launch.

    Attributes:
        other: that of the second entry.
        other_tma: whether that one reads its weights by TMA.
        alignment: rows, experts of blocks, and padded rows of the second entry.
    """

    def __init__(self, own: dict[str, Any], other: dict[str, Any], second: Prepared, tma: bool):
        super().__init__(own)
        self.other, self.other_tma = other, tma
        self.alignment = (second.rows, second.experts, second.padded)


def prepared_pair(prepare: Callable[[int], Any], pair: Pair) -> Prepared:
    """Align for both entries, choose on the device, and hand SGLang the first, which brings the
    second along in its configurations.

    Args:
        prepare: SGLang's own preparation with the entry of so many tokens.
    """
    first = Prepared(*prepare(pair.first.tokens))
    second = Prepared(*prepare(pair.second.tokens))
    # Rows in the order of a block could not be read in that of the other one.
    assert (first.down_tma, second.down_tma) == (False, False), pair
    leave_one(pair, (first.experts, first.padded), (second.experts, second.padded))
    up = PairedConfig(first.config, second.config, second, second.up_tma)
    downs = first.down_config or first.config, second.down_config or second.config
    return first._replace(config=up, down_config=PairedConfig(*downs, second, tma=False))


def with_both_entries(original: Callable[..., Any], *args: Any, **flags: Any) -> None:
    """AROUND `invoke_fused_moe_kernel`, as the experts of a layer call it for each product: the
    launch of a pair's first entry, and behind it that of the second."""
    original(*args, **flags)
    config = args[_CONFIG]
    if isinstance(config, PairedConfig):
        second = list(args)
        second[_ALIGNMENT], second[_CONFIG] = config.alignment, config.other
        original(*second, **{**flags, "b_use_tma": config.other_tma})

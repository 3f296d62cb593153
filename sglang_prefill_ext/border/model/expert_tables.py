"""Read SGLang's tuned tables for a shape of experts."""

from __future__ import annotations

from typing import Any

from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe
from sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe_triton_config import (
    get_config_dtype_str,
    get_default_config,
    get_moe_configs,
)

from sglang_prefill_ext.border.model.expert_hook import Call
from sglang_prefill_ext.moe.blocks import BlockTable, Entry


def table_of(call: Call) -> BlockTable:
    """The table in which `_prepare_fused_moe_run` looks up a call.

    Without a tuned file, SGLang has two defaults: one up to as many tokens as there are experts,
    one for more. The table then has an entry for each.
    """
    experts, width, dtype, *_ = _key(call)
    tuned = _tuned(call, down=False) or {
        tokens: get_default_config(
            *(tokens, experts, width, call.w1.shape[2], call.top_k, dtype, False),
            call.flags["block_shape"],
        )
        for tokens in (experts, experts + 1)
    }
    return BlockTable({tokens: entry["BLOCK_SIZE_M"] for tokens, entry in tuned.items()})


def rows_by_tma(call: Call, table: BlockTable) -> frozenset[Entry]:
    """The entries whose down-projection reads its rows by TMA.

    Between the two products, their rows are stored in the order of their blocks, which the kernels
    of another entry could not read.
    """
    tuned = _tuned(call, down=True) or {}

    def down(entry: Entry) -> dict[str, Any]:
        return tuned[min(tuned, key=lambda tokens: abs(tokens - entry.tokens))]

    return frozenset(each for each in table.entries if tuned and down(each).get("USE_TMA"))


def tuned_text(call: Call) -> str:
    """SGLang's tuned configurations for a call, as text; times of other ones must not be used."""
    return "; ".join(str(_tuned(call, down=down)) for down in (False, True))


def _key(call: Call) -> tuple[int, int, str | None, int, int]:
    """Experts, width and dtype of a call, and the two numbers of its block shape."""
    flags = dict(call.flags)
    shape = flags.pop("block_shape")
    del flags["per_channel_quant"]
    padded = (flags["use_fp8_w8a8"] or flags["use_int8_w8a8"]) and shape is None
    experts, _, width = call.w2.shape
    width -= fused_moe.padding_size if padded else 0
    block_n, block_k = (shape[0], shape[1]) if shape else (0, 0)
    dtype = get_config_dtype_str(dtype=call.dtype, **flags)
    return experts, width, dtype, block_n, block_k


def _tuned(call: Call, *, down: bool) -> dict[int, dict[str, Any]] | None:
    """Tokens -> configuration; None without a tuned file."""
    per_channel = call.flags["per_channel_quant"]
    tuned: dict[int, dict[str, Any]] | None = get_moe_configs(
        *_key(call), per_channel_quant=per_channel, down_moe=down
    )
    return tuned

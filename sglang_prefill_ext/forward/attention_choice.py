"""Chooses at start how the attention of packed forwards is computed on this device."""

from __future__ import annotations

import logging
from collections.abc import Callable

from sglang_prefill_ext.attention.kernels import kernel_obstacle
from sglang_prefill_ext.attention.prefix_libraries import LIBRARIES, library_obstacle
from sglang_prefill_ext.attention.probe import wrong_kernel, wrong_library
from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.forward.model import Model

logger = logging.getLogger(__name__)


def resolve_attention(asked: AttentionWay, model: Model) -> AttentionWay:
    """Check the way that was asked for on this device; return it, or a fallback.

    AUTO becomes FUSED. On a CPU it becomes TORCH, as it does if the kernels cannot run here or
    compute wrong numbers. If a library cannot or does, its way becomes MERGE, which uses our own
    kernel for the prefix.

    On an H100 one launch for all keys was faster than two in each of 16 layouts, with prefixes of
    50 to 2,000 tokens (`bench.kernels.bench_shared_prefix_attention`).

    Raises:
        ConfigError: any other way was asked for, and the kernels cannot run or are wrong.
    """
    # On a CPU, kernels run in Triton's interpreter: for tests, as it is a thousand times slower.
    on_cpu = asked is AttentionWay.AUTO and model.device.type == "cpu"
    if asked is AttentionWay.TORCH or on_cpu:
        return AttentionWay.TORCH
    kinds = [(heads, model.dtype, model.device) for heads in model.heads]
    found = (kernel_obstacle(*it) or wrong_kernel(*it, causal=model.causal) for it in kinds)
    obstacle = next(filter(None, found), "")
    if not obstacle:
        way = AttentionWay.FUSED if asked is AttentionWay.AUTO else asked
        return _with_right_library(way, model)
    if asked is AttentionWay.AUTO:
        logger.error("Packed attention falls back to torch, which is slow: %s", obstacle)
        return AttentionWay.TORCH
    raise ConfigError(
        f"--prefill-only-attention {asked} cannot be used here: {obstacle}. Leave the flag out."
    )


def way_of_all_ranks(own: AttentionWay, agree: Callable[[list[int]], list[int]]) -> AttentionWay:
    """Return the way of this rank, or TORCH if another rank has another way.

    All ranks have to launch the same forwards, also those that compile kernels ahead.

    Args:
        agree: the largest of each number over all ranks.
    """
    number = list(AttentionWay).index(own)
    highest, lowest = agree([number, -number])
    if highest == -lowest:
        return own
    logger.error("Packed attention falls back to torch, which is slow: ranks differ in what works")
    return AttentionWay.TORCH


def _with_right_library(asked: AttentionWay, model: Model) -> AttentionWay:
    if asked not in LIBRARIES:
        return asked
    kind = (model.dtype, model.device)
    wrong = (wrong_library(asked, heads, *kind) for heads in model.heads)
    obstacle = library_obstacle(*kind) or next(filter(None, wrong), "")
    if not obstacle:
        return asked
    logger.error("--prefill-only-attention %s falls back to merge: %s", asked, obstacle)
    return AttentionWay.MERGE

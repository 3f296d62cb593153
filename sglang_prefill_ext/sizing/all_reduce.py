"""How long tensor-parallel ranks take to add up what each has. Pure."""

from __future__ import annotations

from sglang_prefill_ext.sizing.device import Device
from sglang_prefill_ext.sizing.model import ModelShape


def all_reduce_s(num_bytes: int, ranks: int, device: Device) -> float:
    """Seconds of one all-reduce of `num_bytes` on each of `ranks` devices; 0 of one rank.

    The shorter of two ways, as SGLang chooses between them by size. With latency ``a`` and
    bandwidth ``b``:

    * one-shot, every rank reads what all others have: ``a + (ranks - 1) * bytes / b``,
    * ring: ``2 * (ranks - 1) * a + 2 * (ranks - 1) / ranks * bytes / b`` (Thakur, Rabenseifner and
      Gropp, "Optimization of collective communication operations in MPICH", 2005).
    """
    others, latency_s = ranks - 1, device.link_us / 1e6
    one_copy_s = num_bytes / (device.link_gb_s * 1e9)
    one_shot_s = (latency_s if others else 0.0) + others * one_copy_s
    return min(one_shot_s, 2 * others * (latency_s + one_copy_s / ranks))


def all_reduces_s(
    model: ModelShape, tokens: int, rows: int, ranks: int, device: Device, number_bytes: int
) -> float:
    """Seconds of all of a forward's: after the embedding, and each layer's attention and MLP.

    Each adds up ``tokens * hidden`` numbers; those of the last layer, which computes them at the
    read positions only, ``rows * hidden``.
    """
    token_bytes = model.hidden * number_bytes
    of_tokens = 1 + 2 * (model.layers - 1)
    return of_tokens * all_reduce_s(tokens * token_bytes, ranks, device) + 2 * all_reduce_s(
        rows * token_bytes, ranks, device
    )

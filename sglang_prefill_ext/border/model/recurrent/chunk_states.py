"""SGLang's kernel that carries the states of a delta rule from chunk to chunk."""

from __future__ import annotations

from typing import Any

import torch
from sglang.kernels.ops.attention.fla.chunk_delta_h import (
    chunk_gated_delta_rule_fwd_kernel_h_blockdim64,
)
from torch import Tensor

from sglang_prefill_ext.layout.recurrence_parts import CHUNK
from sglang_prefill_ext.recurrent.device_part import DevicePart

_NOT_USED: dict[str, Any] = {
    **{"NT_BUCKET": 0, "TRACK_STATE": False},
    **{"track_state": None, "track_chunk_idx": None, "stride_track_state": 0},
}
"""`NT_BUCKET` would only name forms of the kernel."""


def carried_over_chunks(
    k: Tensor,
    w: Tensor,
    u: Tensor,
    states: Tensor,
    part: DevicePart,
    *,
    g: Tensor | None = None,
    gk: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Carry states through the sequences of a part, stage by stage.

    SGLang's function for it would compute prefixes and rows by calls of their own.

    Args:
        k: ``[1, T, Hk, D]``; w: ``[1, T, H, D]``; u: ``[1, T, H, Dv]``; see SGLang.
        states: ``[slots, H, Dv, D]``; replaced where sequences are prefixes.
        g: decays of heads, natural logarithms ``[1, T, H]``; None with `gk`.
        gk: decays of channels, logarithms to base 2, ``[1, T, H, D]``; None with `g`.

    Returns:
        The state before each chunk, ``[1, chunks, H, Dv, D]``, and what each token adds, like `u`.
    """
    (_, tokens, key_heads, dim), (heads, value_dim) = k.shape, u.shape[2:]
    chunks, chunk_bounds = part.lists
    new, before = torch.empty_like(u), k.new_empty(1, len(chunks), heads, value_dim, dim)
    for ends, bounds, slots, keep in part.stages():
        programs = heads * len(slots)

        def grid(form: dict[str, int], programs: int = programs) -> tuple[int, int]:
            return -(-value_dim // form["BV"]), programs

        chunk_gated_delta_rule_fwd_kernel_h_blockdim64[grid](
            **{"k": k, "v": u, "w": w, "v_new": new, "g": g, "gk": gk, "h": before},
            initial_state=states,
            initial_state_indices=slots,
            stride_init_state=states.stride(0),
            cu_seqlens=bounds,
            chunk_offsets=chunk_bounds[ends],
            **{"T": tokens, "H": heads, "Hg": key_heads, "K": dim, "V": value_dim, "BT": CHUNK},
            USE_G=g is not None,
            USE_GK=gk is not None,
            USE_EXP2=gk is not None,
            USE_INITIAL_STATE=True,
            INPLACE_UPDATE=keep,
            SAVE_NEW_VALUE=True,
            IS_VARLEN=True,
            **_NOT_USED,
        )
    return before, new

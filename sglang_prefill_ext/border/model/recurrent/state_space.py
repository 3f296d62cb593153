"""SGLang's layers of Mamba-2, as packed forwards compute them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from sglang.kernels.ops.mamba.triton_ops.ssd_bmm import _bmm_chunk_fwd
from sglang.kernels.ops.mamba.triton_ops.ssd_chunk_scan import _chunk_scan_fwd
from sglang.kernels.ops.mamba.triton_ops.ssd_chunk_state import (
    _chunk_cumsum_fwd,
    _chunk_state_fwd,
    chunk_state_varlen,
)
from sglang.kernels.ops.mamba.triton_ops.ssd_state_passing import _state_passing_fwd
from sglang.srt.layers.attention.hybrid_linear_attn_backend import Mamba2AttnBackend
from torch import Tensor

from sglang_prefill_ext.recurrent.inputs import state_space_inputs
from sglang_prefill_ext.recurrent.layers import LayerRule, RecurrentInputs, RuleWay, by_torch
from sglang_prefill_ext.recurrent.rule import DevicePart, RuleInputs


class PackedMamba(Mamba2AttnBackend):  # type: ignore[misc]
    """Where models look for the backend of their Mamba-2 layers; a server's own has a pool."""

    def __init__(self) -> None:
        pass

    def forward(
        self,
        mixer: Any,
        hidden_states: Tensor,
        output: Tensor | None,
        layer_id: int,
        forward_batch: Any,
        mup_vector: Tensor | None = None,
        use_triton_causal_conv: bool = False,
    ) -> Tensor:
        gate, inputs = mixer_inputs(mixer, hidden_states, mup_vector)
        return mixer_output(mixer, forward_batch.recur(layer_id, inputs), gate, output)


def mixer_inputs(
    mixer: Any, hidden: Tensor, mup_vector: Tensor | None
) -> tuple[Tensor, RecurrentInputs]:
    """The gate, and the inputs of the recurrence, of a `MambaMixer2`.

    Args:
        hidden: ``[T, hidden]``.
        mup_vector: factors of the projection; None for 1.
    """
    projected, _ = mixer.in_proj(hidden)
    if mup_vector is not None:
        projected = projected * mup_vector
    heads, inner, groups, group_states = _sizes(mixer)
    gate, mixed, dt = projected.split([inner, inner + 2 * group_states, heads], dim=-1)
    state = (groups, mixer.ssm_state_size)
    weights = (mixer.A, mixer.D, mixer.dt_bias)
    rule = LayerRule(
        heads=((heads, mixer.head_dim), state, state),
        state_shape=state_shape(mixer),
        torch=by_torch(partial(state_space_inputs, *weights)),
        kernels=by_kernels(*weights),
    )
    return gate, RecurrentInputs(mixed, conv_weight(mixer), mixer.conv1d.bias, rule, (dt,))


def mixer_output(mixer: Any, carried: Tensor, gate: Tensor, output: Tensor | None) -> Tensor:
    """The output of a `MambaMixer2`, also written to `output`.

    Args:
        carried: ``[T, heads, head size]``.
    """
    made: Tensor = mixer.out_proj(mixer.norm(carried.flatten(1), gate))[0]
    return made if output is None else output.copy_(made)


def conv_weight(mixer: Any) -> Tensor:
    """``[C, W]``."""
    weight: Tensor = mixer.conv1d.weight.squeeze(1)
    return weight


def state_shape(mixer: Any) -> tuple[int, int, int]:
    """See `LayerRule`; of a rank."""
    heads, *_ = _sizes(mixer)
    return heads, mixer.head_dim, mixer.ssm_state_size


def by_kernels(a: Tensor, d: Tensor, dt_bias: Tensor) -> RuleWay:
    """By the Triton kernels of SGLang's `mamba_chunk_scan_combined`, with states in float32.

    That function takes lists of chunks which SGLang makes on the device and has to wait for, and it
    computes the state behind every sequence.
    """

    def prepare(x: Tensor, b: Tensor, c: Tensor, dt: Tensor) -> RuleInputs:
        return RuleInputs(c, b, x, dt)

    def carry(inputs: RuleInputs, states: Tensor, part: DevicePart, out: Tensor) -> None:
        c, b, x, dt = (each[None] for each in inputs[:4] if each is not None)
        sequences, chunks, starts = part.lists
        seq_idx, grid = sequences[None], part.part.grid
        initial = _initial(states, part)
        decay, steps = _chunk_cumsum_fwd(dt, a, grid, dt_bias=dt_bias, dt_softplus=True)
        of_chunks = _chunk_state_fwd(b, x, steps, decay, seq_idx=seq_idx)
        passed, _ = _state_passing_fwd(
            *(of_chunks.flatten(3), decay, initial.flatten(2)),
            seq_idx=seq_idx,
            chunk_size=grid,
            is_cont_batched=True,
            chunk_offsets=starts,
        )
        passed = passed.view_as(of_chunks)
        products = _bmm_chunk_fwd(c, b, grid, seq_idx=seq_idx, output_dtype=torch.float32)
        _chunk_scan_fwd(
            *(products, x, steps, decay, c, passed),
            D=d,
            seq_idx=seq_idx,
            chunk_indices=chunks,
            chunk_offsets=starts,
            initial_states=initial,
            out=out[None],
        )
        if part.part.num_prefixes:
            behind = (b[0], x[0], steps[0], decay[0], part.bounds, passed[0])
            states[part.slots] = chunk_state_varlen(*behind, initial_states=initial)

    return RuleWay(prepare, carry)


def _initial(states: Tensor, part: DevicePart) -> Tensor:
    """The state from which each sequence starts, float32 ``[n, heads, head size, state size]``."""
    slots = part.part.sequences.slots
    if (slots == slots[0]).all():
        return states[slots[0]].expand(len(slots), *states.shape[1:])
    return states.index_select(0, part.slots)


def _sizes(mixer: Any) -> tuple[int, int, int, int]:
    """Of a rank: heads, their channels, groups of heads, and channels of the groups' states."""
    ranks = mixer.tp_size
    return (
        mixer.num_heads // ranks,
        mixer.intermediate_size // ranks,
        mixer.n_groups // ranks,
        mixer.groups_ssm_state_size // ranks,
    )

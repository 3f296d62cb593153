"""Layers of Mamba-2 on the CPU reference platform, where SGLang has only Triton for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sglang_prefill_ext.border.cpu.state_pool import carried_over_pool
from sglang_prefill_ext.border.model.recurrent.state_space import mixer_inputs, mixer_output


def mixed(
    _original: Callable[..., Any],
    mixer: Any,
    *,
    hidden_states: Tensor,
    layer_cache: Any,
    metadata: Any,
    output: Tensor | None = None,
    mup_vector: Tensor | None = None,
    **_flags: Any,
) -> tuple[Tensor, None, None]:
    """AROUND `MambaMixer2.forward`: carry the states in SGLang's pool through a batch."""
    gate, inputs = mixer_inputs(mixer, hidden_states, mup_vector)
    lens, begins = _sequences(metadata)
    carried = carried_over_pool(inputs, layer_cache, metadata.mamba_cache_indices, lens, begins)
    return mixer_output(mixer, carried, gate, output), None, None


def _sequences(metadata: Any) -> tuple[list[int], Tensor]:
    """Tokens of each sequence of a batch, and whether it begins with this batch."""
    generating = [1] * metadata.num_decodes
    of_prefill = metadata.mixed_metadata
    if of_prefill is None:
        return generating, torch.zeros(len(generating), dtype=torch.bool)
    going_on = torch.zeros(len(generating), dtype=torch.bool)
    begins = torch.cat([~of_prefill.has_initial_states[: metadata.num_prefills], going_on])
    return [*of_prefill.extend_seq_lens_cpu, *generating], begins

"""Run one planned forward: upload, model, attention over the packed layout, read-out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sglang_prefill_ext.attention.readout import ReadoutAttention
from sglang_prefill_ext.attention.shared_prefix import PackedAttention
from sglang_prefill_ext.oneshot.completion import ForwardCompletion
from sglang_prefill_ext.oneshot.planner import ForwardPlan
from sglang_prefill_ext.oneshot.readout import label_values

KeyValue: TypeAlias = tuple[Tensor, Tensor]
Attend: TypeAlias = Callable[[int, Tensor, Tensor, Tensor, float], Tensor]
"""``(layer, q [T,H,D], k [T,KH,D], v [T,KH,Dv], scale) -> out [T,H,Dv]``

In the last layer ``q`` and ``out`` have one entry a read position instead of one a token."""


OutputHead: TypeAlias = Callable[[Tensor], Tensor]
"""``hidden [n, hidden size] -> logits [n, columns]``"""


class Model(Protocol):
    """What the executor needs of a model; implemented at the border to SGLang."""

    device: torch.device
    vocab_size: int
    asynchronous: bool
    """Whether work runs on after a call returns (a GPU in the overlap event loop)."""
    last_layer: int
    """The layer whose attention output is needed at the read positions only."""

    def stream(self) -> AbstractContextManager[object]:
        """The stream on which this forward is launched."""
        ...

    def hidden_states(
        self,
        token_ids: Tensor,
        positions: Tensor,
        read_at: Tensor,
        row_lens: list[int],
        attend: Attend,
    ) -> Tensor:
        """Final hidden states ``[R, hidden]`` of a packed forward at R >= 1 read positions."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits over the vocabulary ``[n, vocab_size]`` of n hidden states."""
        ...

    def label_head(self, label_ids: Tensor) -> OutputHead | None:
        """The output head restricted to some labels; None if it cannot be taken apart."""
        ...


@dataclass(slots=True)
class HeldPrefix:
    """K/V of a request's prefix, dense by layer, between two forwards of the request."""

    layers: dict[int, KeyValue] = field(default_factory=dict)


class PackedExecutor:
    """Launches planned forwards on a model.

    Args:
        readout_bytes: memory for full-vocabulary logits in the read-out, in bytes.
    """

    def __init__(self, model: Model, *, readout_bytes: int) -> None:
        self._model = model
        self._readout_rows = max(1, readout_bytes // (4 * model.vocab_size))

    @property
    def asynchronous(self) -> bool:
        return self._model.asynchronous

    @torch.inference_mode()
    def launch(self, plan: ForwardPlan, held: Sequence[HeldPrefix | None]) -> ForwardCompletion:
        """Run the forward up to the copy of its label values to the host.

        Args:
            held: what earlier forwards left, one entry per group; None for no held prefix.

        Raises:
            RuntimeError: what torch raises, e.g. when memory is exhausted; nothing is kept.
        """
        layout, model = plan.layout, self._model
        with model.stream():
            # A chunk of a prefix has no row; then its first token stands in for one.
            read_positions = layout.read_positions() if layout.num_rows else np.zeros(1, np.int64)
            token_ids, positions, read_at = _upload(
                (plan.token_ids, layout.positions(), read_positions), model.device
            )
            kept = [HeldPrefix() if hold else None for hold in plan.hold]
            attend = self._attend(plan, held, kept)
            hidden = model.hidden_states(token_ids, positions, read_at, _row_lens(plan), attend)
            return ForwardCompletion(self._read(hidden[: layout.num_rows], plan), kept)

    def _attend(
        self,
        plan: ForwardPlan,
        held: Sequence[HeldPrefix | None],
        kept: Sequence[HeldPrefix | None],
    ) -> Attend:
        layout, last_layer = plan.layout, self._model.last_layer
        starts = layout.group_starts().tolist()
        fresh = [slice(a, a + span.fresh) for a, span in zip(starts, layout.groups, strict=True)]
        attention: PackedAttention | None = None

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
            nonlocal attention
            before = [None if prefix is None else prefix.layers[layer] for prefix in held]
            for old, prefix, tokens in zip(before, kept, fresh, strict=True):
                if prefix is not None:
                    prefix.layers[layer] = _extend(old, k[tokens], v[tokens])
            if layer == last_layer:
                if not layout.num_rows:
                    return q.new_zeros(*q.shape[:2], v.shape[2])
                return ReadoutAttention(layout, q.device).forward(q, k, v, scale, before)
            if attention is None:
                attention = PackedAttention(layout, q.device)
            return attention.forward(q, k, v, scale, before)

        return attend

    def _read(self, hidden: Tensor, plan: ForwardPlan) -> Tensor:
        head: OutputHead = self._model.logits
        columns = plan.label_ids
        if not plan.normalised and len(columns):
            labels, places = np.unique(columns, return_inverse=True)
            restricted = self._model.label_head(torch.from_numpy(labels).to(hidden.device))
            if restricted is not None:
                head, columns = restricted, places.astype(np.int32)
        return label_values(
            hidden, columns, plan.label_lens, head, self._readout_rows, normalised=plan.normalised
        )


def _upload(arrays: tuple[NDArray[np.generic], ...], device: torch.device) -> tuple[Tensor, ...]:
    """Copy integer arrays to the device as int64, in one transfer."""
    flat = torch.from_numpy(np.concatenate([a.astype(np.int64, copy=False) for a in arrays]))
    if device.type == "cuda":
        flat = flat.pin_memory()
    return torch.split(flat.to(device, non_blocking=True), [len(a) for a in arrays])


def _row_lens(plan: ForwardPlan) -> list[int]:
    """Token counts that sum to the forward, as a batch of rows would have them.

    SGLang's metadata wants one length a row; the prefix is counted to the first.
    """
    lens: list[int] = []
    for group in plan.layout.groups:
        suffixes = group.suffix_lens.tolist() or [0]
        lens += [group.fresh + suffixes[0], *suffixes[1:]]
    return lens


def _extend(before: KeyValue | None, k: Tensor, v: Tensor) -> KeyValue:
    if before is None:
        return k.clone(), v.clone()
    if not len(k):
        return before
    return torch.cat((before[0], k)), torch.cat((before[1], v))

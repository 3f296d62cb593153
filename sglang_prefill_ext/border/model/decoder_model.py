"""The loaded SGLang model behind the executor's `Model` interface."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from torch import Tensor

from sglang_prefill_ext.attention.inputs import LayerInputs
from sglang_prefill_ext.border.model.capability import (
    RESIDUAL_ON_BATCH,
    attention_layers,
    head_shape,
)
from sglang_prefill_ext.border.model.expert_settings import expert_settings
from sglang_prefill_ext.border.model.output_head import OutputHead
from sglang_prefill_ext.border.model.packed_batch import (
    Adapters,
    PackedAttentionBackend,
    PackedForwardBatch,
    packed_batch_of,
)
from sglang_prefill_ext.border.model.sampler import SglangSampler
from sglang_prefill_ext.border.scheduler.kv_pool import plain_pool
from sglang_prefill_ext.forward.kv_pool import KVPool, OwnPool
from sglang_prefill_ext.forward.model import Attend, Drawn, Overrides, ProductHead
from sglang_prefill_ext.forward.streams import in_order
from sglang_prefill_ext.wire.sampling import Sampling

_IN_FLIGHT_VARIABLE = "PREFILL_ONLY_TEST_IN_FLIGHT"
"""For tests: if set, a CPU's forwards are collected one step after their launch, as on CUDA,
although they are done by then. No option for users: it delays every answer."""


class SglangModel:
    """Runs the model's layers and its output head directly, beside SGLang's model runner.

    Args:
        runner: SGLang's `ModelRunner` of this rank.
        forward_stream: the scheduler's stream context in the overlap event loop, else None.
    """

    causal = True

    def __init__(self, runner: Any, forward_stream: AbstractContextManager[object] | None) -> None:
        self._model = runner.model
        layers = attention_layers(runner.model)
        last = max(layers, key=lambda layer: layer.layer_id)
        shortens = type(runner.model).__name__ in RESIDUAL_ON_BATCH
        self.last_layer: int | None = last.layer_id if shortens else None
        backend = PackedAttentionBackend(runner.attn_backend, self.last_layer)
        self._adapters = Adapters(runner.lora_manager)
        self._context = ForwardContext(attn_backend=backend)
        self._expert_settings = expert_settings(runner.model)
        self._forward_stream = forward_stream
        self.device = torch.device(runner.device)
        self.dtype: torch.dtype = runner.dtype
        self.heads = head_shape(last)
        own = OwnPool(self.heads, len(layers), self.dtype, self.device)
        self.pool: KVPool = plain_pool(runner) or own
        self.vocab_size: int = runner.model_config.vocab_size
        self.longest_prompt: int | None = runner.model_config.context_len
        self.vector_width = self.state_width = 0
        self.unit_length = False
        self._some_zeros = torch.zeros(0, dtype=torch.int64, device=self.device)
        self._sampler = SglangSampler(runner)
        self._head = OutputHead(runner.model, self.vocab_size) if runner.is_generation else None
        runs_on = self.device.type != "cpu" or _IN_FLIGHT_VARIABLE in os.environ
        self.asynchronous = forward_stream is not None and runs_on

    def stream(self) -> AbstractContextManager[object]:
        """Slots of cached prefixes were looked up and allocated on the scheduler's own stream."""
        if self._forward_stream is None:
            return nullcontext()
        on_cuda = self.device.type == "cuda"
        return in_order(self._forward_stream) if on_cuda else self._forward_stream

    def prepare(
        self,
        token_ids: Tensor,
        positions: Tensor,
        read_at: Tensor,
        row_lens: list[int],
        attend: Attend,
        overrides: Overrides | None = None,
        adapter: str = "",
        *,
        shortened: bool,
    ) -> Callable[[], Tensor]:
        batch = packed_batch_of(token_ids, positions, row_lens, self._zeros(len(token_ids)))
        batch.attend = attend
        batch.read_at = read_at if shortened and self.last_layer is not None else None
        batch.adapt = partial(self._adapters.apply_to, adapter=adapter)
        self._adapters.load(adapter)

        def run() -> Tensor:
            batch.adapt(len(token_ids))
            with (
                self._expert_settings(),
                forward_context(self._context, forward_batch=batch),
                nullcontext() if overrides is None else self._overridden(overrides),
            ):
                return self._run(batch, read_at)

        return run

    def _zeros(self, count: int) -> Tensor:
        """int64 ``[count]``: nobody writes to them, so all forwards have the same ones."""
        if count > len(self._some_zeros):
            self._some_zeros = torch.zeros(count, dtype=torch.int64, device=self.device)
        return self._some_zeros[:count]

    @contextmanager
    def _overridden(self, overrides: Overrides) -> Iterator[None]:
        """Have the tokens' embeddings replaced; not all models take embeddings as an argument."""

        def replace(_module: object, _inputs: object, embeds: Tensor) -> None:
            embeds[overrides.at] = overrides.embeds.to(embeds.dtype)

        handle = self._model.model.embed_tokens.register_forward_hook(replace)
        try:
            yield
        finally:
            handle.remove()

    def _run(self, batch: PackedForwardBatch, read_at: Tensor) -> Tensor:
        hidden: Tensor = self._model.model(batch.input_ids, batch.positions, batch)
        return hidden[read_at] if batch.read_at is None else hidden

    def logits(self, hidden: Tensor) -> Tensor:
        assert self._head is not None, "a model that makes vectors has no logits"
        return self._head.logits(hidden)

    def draw(
        self,
        logits: Tensor,
        sampling: Sampling,
        positions: Tensor,
        num_top: int,
        listed: list[list[int]],
    ) -> Drawn:
        return self._sampler.draw(logits, sampling, positions, num_top, listed)

    def product_head(self) -> ProductHead | None:
        return None if self._head is None else self._head.product()


class SglangVectorModel(SglangModel):
    """A model that makes a vector of every row: an embedding, class logits, a reward.

    SGLang's own pooling and heads run on the read positions. Each of them is the last token of a
    row of one to them where only these are left; else they are positions that SGLang's setwise
    scoring names, in the only prompt that there is to it.
    """

    def __init__(self, runner: Any, forward_stream: AbstractContextManager[object] | None) -> None:
        super().__init__(runner, forward_stream)
        self.unit_length = bool(getattr(runner.model.pooler, "normalize", False))
        self._hidden_size: int = runner.model_config.hidden_size
        self._has_states = False
        self.vector_width, self.state_width = self._measured_widths()

    def _run(self, batch: PackedForwardBatch, read_at: Tensor) -> Tensor:
        batch.return_pooled_hidden_states = True
        is_whole = batch.read_at is None
        if is_whole:
            batch.extend_seq_lens_cpu = [len(batch.input_ids)]
            batch.token_indices_to_pool = [read_at]
        else:
            ones = torch.ones_like(read_at, dtype=torch.int32)
            batch.extend_seq_lens, batch.extend_seq_lens_cpu = ones, [1] * len(ones)
        output = self._model.forward(batch.input_ids, batch.positions, batch, get_embedding=True)
        vectors, states = output.embeddings, output.pooled_hidden_states
        if is_whole:
            (vectors,), (states,) = vectors, states
        self._has_states = states is not None
        return vectors if states is None else torch.cat((vectors, states), dim=1)

    def _measured_widths(self) -> tuple[int, int]:
        """Heads differ in where they say it, and in what they show, so one token is tried."""

        def attend_to_itself(_layer: int, inputs: LayerInputs) -> Tensor:
            q, v = inputs.q, inputs.v
            return v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)

        zero = torch.zeros(1, dtype=torch.int64, device=self.device)
        with torch.inference_mode(), self.stream():
            forward = self.prepare(zero, zero, zero, [1], attend_to_itself, shortened=True)
            vectors = forward()
        states = self._hidden_size if self._has_states else 0
        return int(vectors.shape[1]) - states, states

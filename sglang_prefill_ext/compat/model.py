"""The loaded SGLang model behind the executor's `Model` interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsMetadata, should_apply_lm_head_quant_method
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from sglang.srt.runtime_context import get_model
from torch import Tensor

from sglang_prefill_ext.attention.inputs import LayerInputs
from sglang_prefill_ext.compat.adapters import Adapters
from sglang_prefill_ext.compat.attention_backend import PackedAttentionBackend, PackedForwardBatch
from sglang_prefill_ext.compat.capability import RESIDUAL_ON_BATCH, attention_layers, head_shape
from sglang_prefill_ext.compat.sampler import SglangSampler
from sglang_prefill_ext.oneshot.model import Attend, Drawn, Overrides
from sglang_prefill_ext.wire.sampling import Sampling


class SglangModel:
    """Runs the model's layers and its output head directly, beside SGLang's model runner.

    Args:
        runner: SGLang's `ModelRunner` of this rank.
        forward_stream: the scheduler's stream context in the overlap event loop, else None.
    """

    causal = True

    def __init__(self, runner: Any, forward_stream: AbstractContextManager[object] | None) -> None:
        self._model = runner.model
        last = max(attention_layers(runner.model), key=lambda layer: layer.layer_id)
        shortens = type(runner.model).__name__ in RESIDUAL_ON_BATCH
        self.last_layer: int | None = last.layer_id if shortens else None
        backend = PackedAttentionBackend(runner.attn_backend, self.last_layer)
        self._adapters = Adapters(runner.lora_manager)
        self._context = ForwardContext(attn_backend=backend)
        self._forward_stream = forward_stream
        self._logits_metadata = LogitsMetadata(forward_mode=ForwardMode.EXTEND)
        self.device = torch.device(runner.device)
        self.dtype: torch.dtype = runner.dtype
        self.heads = head_shape(last)
        self.vocab_size: int = runner.model_config.vocab_size
        self.longest_prompt: int | None = runner.model_config.context_len
        self.vector_width = self.state_width = 0
        self.unit_length = False
        self._sampler = SglangSampler(runner)
        self._has_plain_head = runner.is_generation and _is_plain_head(runner.model)
        self.asynchronous = forward_stream is not None and self.device.type != "cpu"

    @contextmanager
    def stream(self) -> Iterator[None]:
        if self._forward_stream is None:
            yield
            return
        waits = self.device.type == "cuda"
        scheduling = torch.cuda.current_stream() if waits else None
        with self._forward_stream:
            if scheduling is not None:
                # Slots of cached prefixes were looked up and allocated there.
                torch.cuda.current_stream().wait_stream(scheduling)
            yield

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
        batch = _forward_batch(token_ids, positions, row_lens)
        batch.attend = attend
        batch.read_at = read_at if shortened and self.last_layer is not None else None
        batch.adapt = partial(self._adapters.apply_to, adapter=adapter)
        self._adapters.load(adapter)

        def run() -> Tensor:
            batch.adapt(len(token_ids))
            with (
                get_model().override(shared_experts=self._model.shared_experts_config),
                forward_context(self._context, forward_batch=batch),
                self._overridden(overrides),
            ):
                return self._run(batch, read_at)

        return run

    @contextmanager
    def _overridden(self, overrides: Overrides | None) -> Iterator[None]:
        """Have the tokens' embeddings replaced; not all models take embeddings as an argument."""
        if overrides is None:
            yield
            return

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
        """All-gathered over tensor-parallel ranks, scaled and capped as the model demands."""
        weight = self.head_weight()
        if weight is not None:  # what SGLang's method comes to, which looks at many settings first
            return torch.matmul(hidden.to(weight.dtype), weight.T)
        model = self._model
        logits: Tensor = model.logits_processor._get_logits(
            hidden, _output_head(model), self._logits_metadata, use_logits_buffer=False
        )
        return logits

    def draw(
        self,
        logits: Tensor,
        sampling: Sampling,
        positions: Tensor,
        num_top: int,
        listed: list[list[int]],
    ) -> Drawn:
        return self._sampler.draw(logits, sampling, positions, num_top, listed)

    def head_weight(self) -> Tensor | None:
        # Looked up each time: a weight update may put another tensor in its place.
        return _output_head(self._model).weight[: self.vocab_size] if self._has_plain_head else None


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


def _output_head(model: Any) -> Any:
    """The module that makes logits; some models with tied embeddings have no name for it."""
    return model.lm_head if hasattr(model, "lm_head") else model.model.embed_tokens


def _is_plain_head(model: Any) -> bool:
    """Whether logits are nothing but ``hidden @ lm_head.weight.T`` on this rank."""
    head, processor = _output_head(model), model.logits_processor
    repacked = getattr(head, "use_intel_amx_backend", False) or hasattr(head, "set_lora")
    quantised = should_apply_lm_head_quant_method(head, getattr(head, "quant_method", None))
    scaled = processor.logit_scale is not None or processor.final_logit_softcapping
    other_precision = (
        processor.use_fp32_lm_head
        or processor.use_fp32_lm_head_output
        or processor.rl_on_policy_target is not None
    )
    sharded = processor.do_tensor_parallel_all_gather
    special = repacked or quantised or scaled or other_precision or sharded
    return hasattr(head, "weight") and not special


def _forward_batch(token_ids: Tensor, positions: Tensor, row_lens: list[int]) -> PackedForwardBatch:
    device, rows, total = token_ids.device, len(row_lens), len(token_ids)
    lens = torch.tensor(row_lens, dtype=torch.int32).to(device, non_blocking=True)
    no_slot = torch.zeros(total, dtype=torch.int64, device=device)  # slot 0 is padding
    return PackedForwardBatch(
        forward_mode=ForwardMode.EXTEND,
        batch_size=rows,
        input_ids=token_ids,
        positions=positions,
        req_pool_indices=no_slot[:rows],
        seq_lens=lens,
        seq_lens_sum=total,
        out_cache_loc=no_slot,
        extend_num_tokens=total,
        extend_seq_lens=lens,
        extend_seq_lens_cpu=row_lens,
        extend_prefix_lens=torch.zeros(rows, dtype=torch.int32, device=device),
        extend_prefix_lens_cpu=[0] * rows,
        capture_hidden_mode=CaptureHiddenMode.NULL,
        global_num_token_non_padded_cpu=total,
        is_prefill_only=True,
    )

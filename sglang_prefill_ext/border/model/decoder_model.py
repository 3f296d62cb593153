"""The loaded SGLang model as the executor's `Model`: layers, output head, KV pool, stream."""

from __future__ import annotations

import copy
import os
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from sglang.srt.distributed.communication_op import tensor_model_parallel_all_gather
from sglang.srt.distributed.parallel_state import get_tp_group, graph_capture
from sglang.srt.layers.logits_processor import LogitsMetadata, should_apply_lm_head_quant_method
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from sglang_prefill_ext.border.model.capability import attention_layers, head_shape, text_part
from sglang_prefill_ext.border.model.expert_layers import expert_settings
from sglang_prefill_ext.border.model.layer_embeddings import look_media_up_as_padding
from sglang_prefill_ext.border.model.model_classes import POSITIONS_FROM_1, RESIDUAL_ON_BATCH
from sglang_prefill_ext.border.model.packed_batch import (
    Adapters,
    PackedAttentionBackend,
    PackedForwardBatch,
    PackedHybridBackend,
    packed_batch_of,
)
from sglang_prefill_ext.border.model.recurrent.layers import recurrence_of, state_bytes
from sglang_prefill_ext.border.model.sampler import SglangSampler
from sglang_prefill_ext.border.scheduler.kv_memory import plain_pool
from sglang_prefill_ext.errors import PackedForwardError
from sglang_prefill_ext.forward.device import in_order
from sglang_prefill_ext.forward.kv_pool import KVPool, OwnPool
from sglang_prefill_ext.forward.model import Attend, Overrides, Recur
from sglang_prefill_ext.forward.readers.logit_chunks import ProductHead, product


class OutputHead:
    """Computes logits. If they are a matrix product, `product` allows to compute only some of them.

    The weight is looked up in every call, as an update may replace the tensor.

    Args:
        model: the model of a generation server.
        vocab_size: number of tokens that have a logit.
    """

    def __init__(self, model: Any, vocab_size: int) -> None:
        self._model = model
        self._vocab_size = vocab_size
        self._is_product = _is_product(model)
        processor = model.logits_processor
        self._is_shard = bool(processor.do_tensor_parallel_all_gather)
        if self._is_shard:
            self._is_product = self._is_product and _is_cut_evenly(model, vocab_size)
            # SGLang's own gather uses a buffer that all ranks write to. It is correct only if the
            # ranks synchronise between two calls, but chunks of logits follow immediately.
            processor = copy.copy(processor)
            processor._logits_gatherer = partial(tensor_model_parallel_all_gather, dim=-1)
        self._processor = processor
        head = self.product()
        self._is_plain = head is not None and head.is_plain
        self._metadata = LogitsMetadata(forward_mode=ForwardMode.EXTEND)

    def product(self) -> ProductHead | None:
        """See `Model.product_head`."""
        if not self._is_product:
            return None
        head, first, num_tokens = output_module(self._model), 0, self._vocab_size
        if self._is_shard:
            first = head.shard_indices.org_vocab_start_index
            num_tokens = head.shard_indices.org_vocab_end_index - first
        scale = self._processor.logit_scale
        return ProductHead(
            head.weight[:num_tokens],
            first=first,
            scale=1.0 if scale is None else float(scale),
            soft_cap=self._processor.final_logit_softcapping or 0.0,
            gather=_from_all_ranks if self._is_shard else None,
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Model.logits`."""
        if self._is_plain:
            # The same as SGLang's method, without its checks of many settings.
            weight = output_module(self._model).weight[: self._vocab_size]
            return product(weight, hidden)
        logits: Tensor = self._processor._get_logits(
            hidden, output_module(self._model), self._metadata, use_logits_buffer=False
        )
        return logits


def output_module(model: Any) -> Any:
    """The module that computes logits; some models with tied embeddings have no `lm_head`."""
    return model.lm_head if hasattr(model, "lm_head") else model.model.embed_tokens


def _is_product(model: Any) -> bool:
    """Whether logits are ``hidden @ weight.T``, scaled and capped."""
    head, processor = output_module(model), model.logits_processor
    repacked = getattr(head, "use_intel_amx_backend", False) or hasattr(head, "set_lora")
    quantised = should_apply_lm_head_quant_method(head, getattr(head, "quant_method", None))
    other_precision = (
        processor.use_fp32_lm_head
        or processor.use_fp32_lm_head_output
        or processor.rl_on_policy_target is not None
    )
    return hasattr(head, "weight") and not (repacked or quantised or other_precision)


def _is_cut_evenly(model: Any, vocab_size: int) -> bool:
    """Whether every rank has tokens of the vocabulary; the result is the same on all ranks."""
    head, processor = output_module(model), model.logits_processor
    elsewhere = processor.do_tensor_parallel_all_gather_dp_attn or processor.use_attn_tp_group
    if elsewhere or head.num_added_embeddings or head.org_vocab_size != vocab_size:
        return False
    return bool(head.num_embeddings_per_partition * (head.tp_size - 1) < vocab_size)


def _from_all_ranks(values: Tensor) -> Tensor:
    """All-gather: from ``[n]`` on every rank to ``[ranks, n]``."""
    gathered: Tensor = tensor_model_parallel_all_gather(values[None], dim=0)
    return gathered


def _shared(layers: list[Any]) -> set[int]:
    """Ids of the layers whose K/V later layers read, under the same id."""
    numbers = Counter(layer.layer_id for layer in layers)
    return {number for number, count in numbers.items() if count > 1}


_IN_FLIGHT_VARIABLE = "PREFILL_ONLY_TEST_IN_FLIGHT"
"""Environment variable for tests: if set, forwards on a CPU are collected one step after their
launch, as on CUDA, although they are done at once. Not for users, as it delays every answer."""


class SglangModel:
    """Runs the model's layers and its output head directly, beside SGLang's model runner.

    Args:
        runner: SGLang's `ModelRunner` of this rank.
        forward_stream: the scheduler's stream context in the overlap event loop, else None.
    """

    causal = True

    def __init__(self, runner: Any, forward_stream: AbstractContextManager[object] | None) -> None:
        self._model = text_part(runner.model)
        layers = attention_layers(runner.model)
        last = max(layers, key=lambda layer: layer.layer_id)
        self._looks_up_again = look_media_up_as_padding(runner.model)
        shortens = type(runner.model).__name__ in RESIDUAL_ON_BATCH and not self._looks_up_again
        self.last_layer: int | None = last.layer_id if shortens else None
        self.recurrence = recurrence_of(runner)
        has_grid = self.recurrence is not None and self.recurrence.grid > 0
        backend_class = PackedHybridBackend if has_grid else PackedAttentionBackend
        heads = {layer.layer_id: head_shape(layer, runner) for layer in layers}
        chunks = {number: each.chunk for number, each in heads.items()}
        backend = backend_class(runner.attn_backend, self.last_layer, _shared(layers), chunks)
        # SGLang's prefixes in the cache have it, too.
        self._first_position = int(type(runner.model).__name__ in POSITIONS_FROM_1)
        self._adapters = Adapters(runner.lora_manager)
        self._context = ForwardContext(attn_backend=backend)
        self._expert_settings = expert_settings(runner.model)
        self._forward_stream = forward_stream
        self.device = torch.device(runner.device)
        self.dtype: torch.dtype = runner.dtype
        self.heads = tuple(dict.fromkeys(heads.values()))
        own = OwnPool(heads, self.dtype, self.device, state_bytes(runner.model, self.dtype))
        self.pool: KVPool = plain_pool(runner, heads[last.layer_id]) or own
        self.vocab_size: int = runner.model_config.vocab_size
        self.longest_prompt: int | None = runner.model_config.context_len
        self.vector_width = self.state_width = 0
        self.unit_length = False
        self._some_zeros = torch.zeros(0, dtype=torch.int64, device=self.device)
        self.draw = SglangSampler(runner).draw
        if runner.is_generation:  # else logits are never needed
            head = OutputHead(self._model, self.vocab_size)
            self.logits, self.product_head = head.logits, head.product
        runs_on = self.device.type != "cpu" or _IN_FLIGHT_VARIABLE in os.environ
        self.asynchronous = forward_stream is not None and runs_on
        self.alone: bool = get_tp_group().world_size == 1

    def stream(self) -> AbstractContextManager[object]:
        """The forward stream, if any; on CUDA it first waits for the scheduler's own stream.

        There the slots of cached prefixes were looked up and allocated.
        """
        if self._forward_stream is None:
            return nullcontext()
        on_cuda = self.device.type == "cuda"
        return in_order(self._forward_stream) if on_cuda else self._forward_stream

    def capturing(self) -> AbstractContextManager[object]:
        """See `Model.capturing`."""
        return nullcontext() if self.alone or self.device.type != "cuda" else graph_capture()

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
        recur: Recur | None = None,
    ) -> Callable[[], Tensor]:
        batch = packed_batch_of(token_ids, positions, row_lens, self._zeros(len(token_ids)))
        batch.attend, batch.recur = attend, recur
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
        """int64 ``[count]``; all forwards share them, as nothing writes to them."""
        if count > len(self._some_zeros):
            self._some_zeros = torch.zeros(count, dtype=torch.int64, device=self.device)
        return self._some_zeros[:count]

    def _overridden(self, overrides: Overrides) -> AbstractContextManager[object]:
        """Replace embeddings of tokens by a hook, as not all models take embeddings as argument."""
        if self._looks_up_again:
            raise PackedForwardError(
                "Embeddings in the place of tokens are not possible with this model, whose layers "
                "look the tokens up, too; leave them out"
            )

        def replace(_module: object, _inputs: object, embeds: Tensor) -> None:
            rows = embeds.view(-1, embeds.shape[-1])  # the Transformers backend has a batch of one
            rows[overrides.at] = overrides.embeds.to(embeds.dtype)

        handle: RemovableHandle = self._model.model.embed_tokens.register_forward_hook(replace)
        return handle

    def _run(self, batch: PackedForwardBatch, read_at: Tensor) -> Tensor:
        layers = getattr(self._model, "_forward_hidden_states", self._model.model)
        positions = batch.positions
        if self._first_position:
            positions = positions + self._first_position
        made = layers(batch.input_ids, positions, batch)
        hidden: Tensor = made[0] if isinstance(made, tuple) else made  # MiMo V2 returns more
        return hidden[read_at] if batch.read_at is None else hidden

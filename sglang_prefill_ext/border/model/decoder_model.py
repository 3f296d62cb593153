"""The loaded SGLang model as the executor's `Model`: layers, output head, KV pool, stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from sglang.srt.distributed.parallel_state import get_tp_group, graph_capture
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from sglang_prefill_ext.border.model.adapters import Adapters
from sglang_prefill_ext.border.model.capability import attention_layers, head_shape, text_part
from sglang_prefill_ext.border.model.expert_layers import expert_settings
from sglang_prefill_ext.border.model.kv_pool import plain_pool
from sglang_prefill_ext.border.model.model_classes import (
    POSITIONS_FROM_1,
    RESIDUAL_ON_BATCH,
    longest_packed,
)
from sglang_prefill_ext.border.model.output_head import OutputHead
from sglang_prefill_ext.border.model.packed_backend import (
    PackedAttentionBackend,
    PackedForwardBatch,
    PackedHybridBackend,
    packed_batch_of,
)
from sglang_prefill_ext.border.model.recurrent.layers import recurrence_of, state_bytes
from sglang_prefill_ext.border.model.sampler import SglangSampler
from sglang_prefill_ext.errors import PackedForwardError
from sglang_prefill_ext.forward.device import in_order
from sglang_prefill_ext.forward.kv_pool import KVPool, OwnPool
from sglang_prefill_ext.forward.model import Adapted, Attend, Overrides, Recur


def _shared(layers: list[Any]) -> set[int]:
    """Ids of the layers whose K/V later layers read, under the same id."""
    numbers = Counter(layer.layer_id for layer in layers)
    return {number for number, count in numbers.items() if count > 1}


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
        self._has_adapters = runner.lora_manager is not None
        self._context = ForwardContext(attn_backend=backend)
        self._expert_settings = expert_settings(runner.model)
        self._forward_stream = forward_stream
        self.device = torch.device(runner.device)
        self.dtype: torch.dtype = runner.dtype
        self.heads = tuple(dict.fromkeys(heads.values()))
        own = OwnPool(heads, self.dtype, self.device, state_bytes(runner.model, self.dtype))
        self.pool: KVPool = plain_pool(runner, heads[last.layer_id]) or own
        self.vocab_size: int = runner.model_config.vocab_size
        self.longest_prompt: int | None = longest_packed(runner.model_config)
        self.window: int = max(0, *(layer.sliding_window_size or 0 for layer in layers))
        """The longest window of a layer, in tokens; 0 if no layer has one."""
        self.vector_width = self.state_width = 0
        self.unit_length = False
        self._some_zeros = torch.zeros(0, dtype=torch.int64, device=self.device)
        self.draw = SglangSampler(runner).draw
        if runner.is_generation:  # else logits are never needed
            head = OutputHead(self._model, self.vocab_size)
            self.logits, self.product_head = head.logits, head.product
        self.asynchronous = forward_stream is not None and self.device.type != "cpu"
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
        adapted: Sequence[Adapted] = (),
        *,
        shortened: bool,
        recur: Recur | None = None,
    ) -> Callable[[], Tensor]:
        batch = packed_batch_of(token_ids, positions, row_lens, self._zeros(len(token_ids)))
        batch.attend, batch.recur = attend, recur
        batch.read_at = read_at if shortened and self.last_layer is not None else None
        if adapted or self._has_adapters:
            self._adapters.load(adapted)
            batch.adapt = partial(self._adapters.apply_to, adapted)

        def run() -> Tensor:
            batch.adapt(shortened=False)
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
        prepare = getattr(self._model, "_prepare_positions", None)
        if prepare is not None:  # Mellum casts them for a kernel
            positions = prepare(positions, self.device)
        made = layers(batch.input_ids, positions, batch)
        hidden: Tensor = made[0] if isinstance(made, tuple) else made  # MiMo V2 returns more
        return hidden[read_at] if batch.read_at is None else hidden


def look_media_up_as_padding(model: Any) -> bool:
    """Whether the layers look tokens up, too, as those of Gemma 4 E2B and E4B; most do not.

    If so, ids that stand for pictures or sounds are changed before. In a text they are names
    without a picture. SGLang's whole model changes them, too, before it calls the part that packed
    forwards run.
    """
    layers = getattr(text_part(model), "model", None)
    table = getattr(layers, "embed_tokens_per_layer", None)
    if table is None:
        return False
    config = model.config
    media = [getattr(config, f"{kind}_token_id") for kind in ("image", "video", "audio")]
    padding: int = config.get_text_config().pad_token_id

    def change(_module: object, inputs: tuple[Tensor]) -> Tensor:
        (ids,) = inputs
        for token in media:
            ids = torch.where(ids == token, padding, ids)
        return ids

    table.register_forward_pre_hook(change)
    return True

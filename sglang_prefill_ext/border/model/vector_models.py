"""Models that make vectors (decoders and encoders) as the executor's `Model`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from sglang.srt.layers.pooler import CrossEncodingPooler, PoolingType
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from sglang_prefill_ext.attention.inputs import LayerInputs
from sglang_prefill_ext.border.model.decoder_model import SglangModel
from sglang_prefill_ext.border.model.model_classes import (
    EMBEDDING_GEMMA,
    ENCODER_ARCHITECTURES,
    encoder_traits,
    longest_packed,
)
from sglang_prefill_ext.border.model.packed_backend import PackedForwardBatch
from sglang_prefill_ext.errors import PackedForwardError
from sglang_prefill_ext.forward.model import Overrides
from sglang_prefill_ext.recurrent.layers import RecurrentInputs


class SglangVectorModel(SglangModel):
    """A model that makes a vector of every row: an embedding, class logits, a reward.

    SGLang's own pooling and heads run on the read positions alone, as if each were a prompt of one
    token.
    """

    def __init__(self, runner: Any, forward_stream: AbstractContextManager[object] | None) -> None:
        super().__init__(runner, forward_stream)
        self.unit_length = bool(getattr(runner.model.pooler, "normalize", False))
        self._hidden_size: int = runner.model_config.hidden_size
        self._has_states = False
        self.vector_width, self.state_width = self._measured_widths()

    def _run(self, batch: PackedForwardBatch, read_at: Tensor) -> Tensor:
        batch.return_pooled_hidden_states = True
        if getattr(self._model, "is_mrope_enabled", False):
            # Of text, all three parts of a position are the same.
            batch.mrope_positions = batch.positions.expand(3, -1)
        ones = torch.ones_like(read_at, dtype=torch.int32)
        batch.extend_seq_lens, batch.extend_seq_lens_cpu = ones, [1] * len(ones)
        with nullcontext() if batch.read_at is not None else self._leaving(read_at):
            output = self._model.forward(
                batch.input_ids, batch.positions, batch, get_embedding=True
            )
        vectors, states = output.embeddings, output.pooled_hidden_states
        self._has_states = states is not None
        return vectors if states is None else torch.cat((vectors, states), dim=1)

    def _leaving(self, read_at: Tensor) -> RemovableHandle:
        """Leave the read positions only, behind layers that have computed all tokens."""

        def choose(_module: object, _inputs: object, output: Any) -> Any:
            if isinstance(output, tuple):  # of Transformers, which has a batch of one
                return (output[0][:, read_at], *output[1:])
            return output[read_at]

        handle: RemovableHandle = self._model.model.register_forward_hook(choose)
        return handle

    def _measured_widths(self) -> tuple[int, int]:
        """Run one token to find the widths of vectors and states.

        Heads differ in which attribute has the width, and in whether they return states.
        """

        def attend_to_itself(_layer: int, inputs: LayerInputs) -> Tensor:
            q, v = inputs.q, inputs.v
            return v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)

        def write_nothing(_layer: int, inputs: RecurrentInputs) -> Tensor:
            return inputs.mixed.new_zeros(inputs.output_shape)

        with torch.inference_mode(), self.stream():
            # Made on that stream, so its memory is reused only behind the forward, which nobody
            # waits for.
            zero = torch.zeros(1, dtype=torch.int64, device=self.device)
            forward = self.prepare(
                zero, zero, zero, [1], attend_to_itself, recur=write_nothing, shortened=True
            )
            vectors = forward()
        states = self._hidden_size if self._has_states else 0
        return int(vectors.shape[1]) - states, states


class SglangEncoder(SglangVectorModel):
    """A bidirectional model: embeddings of the first token or of the mean, or a cross encoder.

    Rows are whole prompts, which are read at their first tokens.
    """

    causal = False

    def __init__(self, runner: Any, forward_stream: AbstractContextManager[object] | None) -> None:
        super().__init__(runner, forward_stream)
        traits = encoder_traits(runner.model_config)
        assert traits is not None, "a model class of `ENCODER_ARCHITECTURES`"
        self.longest_prompt = min(traits.longest_prompt, longest_packed(runner.model_config))
        if type(runner.model).__name__ == EMBEDDING_GEMMA:  # which normalises behind its pooler
            self.unit_length = True

    def _run(self, batch: PackedForwardBatch, read_at: Tensor) -> Tensor:
        # See `EncoderTraits.token_types`.
        batch.token_type_ids = batch.input_ids // self.vocab_size
        token_ids = batch.input_ids % self.vocab_size
        with self._numbering(token_ids, batch), self._reading(read_at, batch):
            output = self._model.forward(token_ids, batch.positions, batch, get_embedding=True)
        vectors: Tensor = output.embeddings
        return vectors.view(len(read_at), -1)  # a head of one class returns a scalar for each row

    def _numbering(
        self, token_ids: Tensor, batch: PackedForwardBatch
    ) -> AbstractContextManager[object]:
        """Give all tokens of XLM-RoBERTa their places at once.

        SGLang would do it prompt by prompt, and wait for the device in each. It now does so for one
        empty prompt, and what it finds is replaced.
        """
        encoder = getattr(self._model, "roberta", None)
        if encoder is None:
            return nullcontext()
        embeddings = encoder.embeddings
        numbers = _places(token_ids, batch.positions, embeddings.padding_idx)
        batch.seq_lens = torch.zeros(1, dtype=torch.int64)
        table = embeddings.position_embeddings
        handle: RemovableHandle = table.register_forward_pre_hook(lambda *_: (numbers,))
        return handle

    @contextmanager
    def _reading(self, read_at: Tensor, batch: PackedForwardBatch) -> Iterator[None]:
        """Let pooling and head see the read tokens alone, each as if it were a prompt of one token.

        The head of a cross encoder reads token 0 of one prompt after the other. It gets one prompt,
        whose token 0 is all these tokens. The result is one row a token again before the
        activation, which may look across the classes.

        A mean takes the place of each read token, and is not pooled again: SGLang's means are
        differences of sums over all prompts, which are inexact in half precision.
        """
        pooler = self._model.pooler
        loops = isinstance(pooler, CrossEncodingPooler)
        averages = not loops and pooler.pooling_type == PoolingType.MEAN
        lens = torch.ones(1, dtype=torch.int64) if loops else torch.ones_like(read_at)
        batch.extend_seq_lens = lens

        def choose(_module: object, inputs: Any) -> Any:
            hidden = inputs[0]
            if averages:
                return (_means(hidden, batch.positions, read_at), *inputs[1:])
            hidden = hidden.index_select(0, read_at)
            return (hidden[None] if loops else hidden, *inputs[1:])

        def keep(_module: object, inputs: Any, output: Any) -> Any:
            return replace(output, embeddings=inputs[0])

        def join(_module: object, inputs: Any) -> Any:
            return inputs[0].squeeze(0)

        with ExitStack() as hooks:
            hooks.enter_context(pooler.register_forward_pre_hook(choose))
            if averages:
                hooks.enter_context(pooler.register_forward_hook(keep))
            if loops:
                activation = pooler.default_activation_function
                hooks.enter_context(activation.register_forward_pre_hook(join))
            yield

    def _overridden(self, overrides: Overrides) -> AbstractContextManager[object]:
        raise PackedForwardError(
            "Embeddings in the place of tokens are not possible with an encoder; leave them out"
        )


def _means(hidden: Tensor, positions: Tensor, read_at: Tensor) -> Tensor:
    """The means over the prompts of the read tokens, ``[reads, hidden]``, added up in float32.

    Args:
        hidden: ``[T, hidden]``.
        positions: of each token in its prompt, from 0 on.
    """
    prompt = (positions == 0).cumsum(0) - 1
    sums = torch.zeros_like(hidden, dtype=torch.float32).index_add_(0, prompt, hidden.float())
    lens = torch.zeros_like(positions).index_add_(0, prompt, torch.ones_like(positions))
    read = prompt.index_select(0, read_at)
    return (sums[read] / lens[read, None]).to(hidden.dtype)


def _places(token_ids: Tensor, positions: Tensor, padding: int) -> Tensor:
    """Rows of XLM-RoBERTa's table of positions, int64 ``[T]``, without waiting for the device.

    Tokens of a prompt are numbered from ``padding + 1`` on; tokens of padding have `padding`.

    Args:
        positions: of each token in its prompt, from 0 on.
        padding: the id of tokens that are not numbered.
    """
    counted = token_ids.ne(padding).long()
    behind = counted.cumsum(0)
    first = torch.arange(len(token_ids), device=token_ids.device) - positions
    before = (behind - counted).index_select(0, first)
    return (behind - before) * counted + padding


def model_of(runner: Any, forward_stream: AbstractContextManager[object] | None) -> SglangModel:
    """Return the `Model` of a rank: for labels, for vectors of a decoder, or for an encoder."""
    kind = SglangModel if runner.is_generation else SglangVectorModel
    if type(runner.model).__name__ in ENCODER_ARCHITECTURES:
        kind = SglangEncoder
    return kind(runner, forward_stream)

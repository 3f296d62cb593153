"""SGLang's encoders behind the executor's `Model` interface."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from sglang.srt.layers.pooler import CrossEncodingPooler
from torch import Tensor

from sglang_prefill_ext.border.model.capability import encoder_traits, is_encoder
from sglang_prefill_ext.border.model.decoder_model import SglangModel, SglangVectorModel
from sglang_prefill_ext.border.model.packed_batch import PackedForwardBatch
from sglang_prefill_ext.errors import PackedForwardError
from sglang_prefill_ext.forward.model import Overrides


class SglangEncoder(SglangVectorModel):
    """A model that sees every prompt as a whole: embeddings of the first token, cross encoders.

    Rows are whole prompts, so that SGLang's own pooling and heads take a packed forward as a batch.
    """

    causal = False

    def __init__(self, runner: Any, forward_stream: AbstractContextManager[object] | None) -> None:
        super().__init__(runner, forward_stream)
        traits = encoder_traits(runner.model_config)
        assert traits is not None, "a model class of `ENCODER_ARCHITECTURES`"
        self.longest_prompt = traits.longest_prompt

    def _run(self, batch: PackedForwardBatch, read_at: Tensor) -> Tensor:
        # See `EncoderTraits.token_types`.
        batch.token_type_ids = batch.input_ids // self.vocab_size
        token_ids = batch.input_ids % self.vocab_size
        # SGLang loops over these; on the device it would wait for every single one.
        batch.seq_lens = torch.tensor(batch.extend_seq_lens_cpu)
        if isinstance(self._model.pooler, CrossEncodingPooler):
            batch.extend_seq_lens = batch.seq_lens
        output = self._model.forward(token_ids, batch.positions, batch, get_embedding=True)
        vectors: Tensor = output.embeddings
        return vectors.view(len(read_at), -1)  # a head of one class makes numbers, not vectors

    @contextmanager
    def _overridden(self, overrides: Overrides | None) -> Iterator[None]:
        if overrides is not None:
            raise PackedForwardError(
                "Embeddings in the place of tokens are not possible with an encoder; leave them out"
            )
        yield


def model_of(runner: Any, forward_stream: AbstractContextManager[object] | None) -> SglangModel:
    """Return the model of a rank, by what is read of it."""
    kind = SglangModel if runner.is_generation else SglangVectorModel
    if is_encoder([type(runner.model).__name__]):
        kind = SglangEncoder
    return kind(runner, forward_stream)

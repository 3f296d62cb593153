"""What SGLang's loops over the prompts of a packed forward of an encoder read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers.pooler import CrossEncodingPooler, Pooler

from sglang_prefill_ext.border.model.vector_models import SglangEncoder

DEVICE = torch.device("meta")  # like a GPU: not the host, and its numbers cannot be read


@pytest.mark.parametrize("pooler", [CrossEncodingPooler, Pooler])
def test_lengths_that_are_looped_over_are_on_the_host(pooler: type) -> None:
    batch: Any = SimpleNamespace(
        input_ids=torch.empty(5, dtype=torch.int64, device=DEVICE),
        positions=torch.empty(5, dtype=torch.int64, device=DEVICE),
        seq_lens=torch.empty(2, device=DEVICE),
        extend_seq_lens=torch.empty(2, device=DEVICE),
        extend_seq_lens_cpu=[2, 3],
    )

    def forward(*_args: Any, **_options: Any) -> Any:
        assert batch.seq_lens.tolist() == [2, 3]
        if pooler is CrossEncodingPooler:
            assert batch.extend_seq_lens.tolist() == [2, 3]
        else:  # a product of tensors, which a copy would hold up
            assert batch.extend_seq_lens.device == DEVICE
        return SimpleNamespace(embeddings=torch.ones(2, 4))

    model = object.__new__(SglangEncoder)
    model.vocab_size = 10
    model._model = SimpleNamespace(pooler=object.__new__(pooler), forward=forward)
    assert model._run(batch, torch.tensor([0, 2])).shape == (2, 4)

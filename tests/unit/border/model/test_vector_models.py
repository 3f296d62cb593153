"""What SGLang's loops over an encoder's prompts read; on which stream widths are measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers.pooler import CrossEncodingPooler, Pooler

from sglang_prefill_ext.border.model.vector_models import SglangEncoder, SglangVectorModel

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


def test_the_input_of_the_measured_forward_is_made_on_its_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    zeros = torch.zeros

    @contextmanager
    def stream() -> Iterator[None]:
        calls.append("on")
        yield
        calls.append("off")

    def made(*shape: int, **options: Any) -> torch.Tensor:
        calls.append("input")
        return zeros(*shape, **options)

    model: Any = object.__new__(SglangVectorModel)
    model.device, model.stream = torch.device("cpu"), stream
    model._has_states, model._hidden_size = True, 3
    model.prepare = lambda *_inputs, **_options: lambda: zeros(1, 7)
    monkeypatch.setattr(torch, "zeros", made)
    assert model._measured_widths() == (4, 3)
    assert calls == ["on", "input", "off"]

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.tokenization.huggingface import PROBES
from sglang_prefill_ext.wire.overrides import EmbeddingKind

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # SGLang's, about kernels that this machine lacks
    from sglang_prefill_ext.compat import attached


@pytest.mark.parametrize("gemma", [False, True])
def test_front_ends_encode_no_text_that_sglang_ends_with_a_token_more(
    monkeypatch: pytest.MonkeyPatch, gemma: bool
) -> None:
    monkeypatch.setattr(attached, "thresholds_of_server", lambda: [1, 2, 3])
    model = SimpleNamespace(
        model_path="m",
        hidden_size=4,
        dtype=torch.bfloat16,
        hf_config=SimpleNamespace(),
        hf_text_config=SimpleNamespace(vocab_size=9),
        is_embedding_gemma=gemma,
    )
    manager = SimpleNamespace(
        model_config=model,
        is_generation=False,
        server_args=SimpleNamespace(disable_radix_cache=False),
    )
    link: Any = SimpleNamespace(
        tokenizer_json="{}",
        longest_prompt=lambda: 5,
        encode=lambda texts: [[1]] * len(texts),
    )
    frontend: Any = SimpleNamespace(
        label_vocab_size=9,
        config=PrefillOnlyConfig(),
        exchange=SimpleNamespace(declined_reason=None),
    )
    facts = attached.AttachableEngine(manager, link, frontend).facts()
    assert facts.embeddings == EmbeddingKind(4, "bfloat16")
    assert facts.tokenizer == ("" if gemma else "{}")
    assert len(facts.probes) == (0 if gemma else len(PROBES))

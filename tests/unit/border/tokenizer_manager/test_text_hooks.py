"""Texts get the ids that SGLang's own functions make of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.managers.io_struct import GenerateReqInput
from sglang.srt.managers.tokenizer_manager import TokenizerManager
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from sglang_prefill_ext.border import frontend_setup
from sglang_prefill_ext.border.tokenizer_manager import text_hooks
from sglang_prefill_ext.border.tokenizer_manager.frontend_link import TokenizerManagerLink
from sglang_prefill_ext.config import PrefillOnlyConfig, TokenizerChoice
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.texts import sample_texts
from tests.unit.texts.made import json_of

KINDS = ["llama3", "wordpiece"]
CONFIG = PrefillOnlyConfig(tokenizer=TokenizerChoice.HUGGINGFACE)
AWKWARD = sample_texts.texts(300, ["<s>", "<|im_end|>"])
ANY_TEXT = st.text() | st.sampled_from(AWKWARD) | st.sampled_from(sample_texts.UNREADABLE)


def model_config(*, is_embedding_gemma: bool = False) -> SimpleNamespace:
    decoder = SimpleNamespace(
        **{"architectures": ["LlamaForCausalLM"], "sliding_window": 50},
        **{"max_position_embeddings": 100, "num_labels": 2},
    )
    about: dict[str, Any] = {"is_embedding_gemma": is_embedding_gemma, "context_len": 100}
    return SimpleNamespace(hf_config=decoder, hf_text_config=decoder, **about)


class Manager(TokenizerManager):
    """SGLang's own functions, with only the attributes that they read."""

    def __init__(self, kind: str, **attributes: Any) -> None:
        cutting = Tokenizer.from_str(json_of(kind))
        cutting.enable_truncation(4)  # as many models' files say; no request asks for it
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_object=cutting)
        self.mm_processor = self.async_dynamic_batch_tokenizer = None
        self.model_config = model_config()
        vars(self).update(attributes)
        self.metrics = FrontendMetrics()
        link = TokenizerManagerLink(self, CONFIG, self.metrics)
        assert link.texts.wait_until_ready(60)
        path: Any = SimpleNamespace(link=link, config=CONFIG, metrics=self.metrics)
        self._prefill_only = SimpleNamespace(texts=frontend_setup._texts(self, path, link))

    async def stock(self, asked: Any, **options: Any) -> Any:
        return await TokenizerManager._tokenize_texts(self, asked, **options)

    async def ours(self, asked: Any, **options: Any) -> Any:
        original = TokenizerManager._tokenize_texts
        return await text_hooks.tokenize_texts(original, self, asked, **options)

    def both(self, asked: Any, **options: Any) -> list[Any]:
        async def ask() -> list[Any]:
            outcomes = self.stock(asked, **options), self.ours(asked, **options)
            return await asyncio.gather(*outcomes, return_exceptions=True)

        return asyncio.run(ask())

    @property
    def batches(self) -> int:
        return self.metrics.totals["text_batches"]


manager_of = cache(Manager)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(text=ANY_TEXT)
def test_a_text_has_stocks_ids_or_its_error(kind: str, text: str) -> None:
    stock, ours = manager_of(kind).both(text)
    if isinstance(stock, Exception):
        assert (type(ours), str(ours)) == (type(stock), str(stock))
    else:
        assert ours == stock


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=20)
@given(asked=st.lists(st.text() | st.sampled_from(AWKWARD), max_size=8))
def test_a_list_has_stocks_ids_or_its_error(kind: str, asked: list[str]) -> None:
    stock, ours = manager_of(kind).both(asked)
    assert ours == stock if asked else str(ours) == str(stock)


@pytest.mark.parametrize(
    "attributes",
    [
        {"mm_processor": object()},
        {"model_config": model_config(is_embedding_gemma=True)},
        {"tokenizer": None},
    ],
    ids=["multimodal", "embedding gemma", "no tokenizer"],
)
def test_what_is_unusual_is_left_to_sglang(attributes: dict[str, Any]) -> None:
    manager = Manager("llama3", **attributes)
    stock, ours = manager.both("the word")
    assert str(ours) == str(stock)
    assert manager.batches == 0


def test_the_operators_own_batches_are_left_alone() -> None:
    manager = Manager("llama3", async_dynamic_batch_tokenizer=SimpleNamespace(encode=None))
    assert manager._prefill_only.texts is None


def test_pairs_are_left_to_sglang() -> None:
    manager = Manager("wordpiece")
    stock, ours = manager.both([["the word", "of"]], is_cross_encoder=True)
    assert ours == stock
    assert ours[1] is not None
    assert manager.batches == 0


def handled(manager: Manager, obj: Any) -> Any:
    """The ids that SGLang finds beside the texts of a list."""

    async def original(_: Any, request: Any) -> AsyncIterator[Any]:
        yield [request[number].input_ids for number in range(request.batch_size)]

    async def first() -> Any:
        return await anext(aiter(text_hooks.handle_batch(original, manager, obj)))

    return asyncio.run(first())


@pytest.mark.parametrize(
    ("fields", "batch_encode"),
    [
        ({"input_ids": [[1], [2]]}, False),
        ({"text": ["a", "b"]}, True),
        ({"text": ["a", "b"], "sampling_params": {"n": 2}}, False),
    ],
    ids=["ids", "encoded at once already", "several samples"],
)
def test_other_lists_are_left_as_they_are(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], batch_encode: bool
) -> None:
    serving = SimpleNamespace(enable_tokenizer_batch_encode=batch_encode)
    monkeypatch.setattr(text_hooks, "get_serving", lambda: serving)
    obj, manager = GenerateReqInput(**fields), Manager("llama3")
    obj.normalize_batch_and_arguments()
    assert handled(manager, obj)[:2] == fields.get("input_ids", [None, None])
    assert manager.batches == 0

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_prefill_ext.attach import messages
from sglang_prefill_ext.attach.messages import StockAnswer, StockError, StockScore, StockVectors
from sglang_prefill_ext.border.tokenizer_manager import attached
from sglang_prefill_ext.errors import PackedForwardError, PackingError
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.texts.libraries import PROBES
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Labels
from sglang_prefill_ext.wire.status import Status
from sglang_prefill_ext.wire.stock_reason import StockReason
from tests.unit.frontend.links import StubLink, answer_at_once, path_of, stub_answer


@pytest.mark.parametrize(("gemma", "splits"), [(False, False), (True, False), (False, True)])
def test_front_ends_encode_no_text_that_their_copy_of_the_tokenizer_encodes_otherwise(
    monkeypatch: pytest.MonkeyPatch, gemma: bool, splits: bool
) -> None:
    monkeypatch.setattr(attached, "thresholds_of_server", lambda: [1, 2, 3])
    model = SimpleNamespace(
        model_path="m",
        hidden_size=4,
        dtype=torch.bfloat16,
        hf_config=SimpleNamespace(),
    )
    manager = SimpleNamespace(
        model_config=model,
        is_generation=False,
        server_args=SimpleNamespace(disable_radix_cache=False),
        tokenizer=SimpleNamespace(backend_tokenizer=SimpleNamespace(encode_special_tokens=splits)),
    )
    link: Any = SimpleNamespace(
        tokenizer_json="" if gemma else "{}",
        longest_prompt=lambda: 5,
        longest_packed=5,
        encode=lambda texts: [[1]] * len(texts),
    )
    server: Any = SimpleNamespace(manager=manager, link=link, path=path_of(StubLink()))
    facts = attached.AttachableEngine(server).facts()
    assert facts.embeddings == server.path.embeddings
    assert facts.tokenizer == ("" if gemma or splits else "{}")
    assert len(facts.probes) == (0 if gemma or splits else len(PROBES))


def attachable() -> Any:
    engine = attached.AttachableEngine.__new__(attached.AttachableEngine)
    engine._path = path_of(StubLink(), vocab_size=100, label_vocab_size=90)
    return engine


def _rows(tokens: list[int], labels: list[int]) -> PackedRows:
    return PackedRows(int_array(tokens), 1, int_array([1]), Labels(int_array(labels)))


@pytest.mark.parametrize(("tokens", "labels"), [([5, 100], [4]), ([5, 6], [90]), ([5, 6], [-1, 4])])
async def test_ids_that_are_no_tokens_do_not_reach_the_scheduler(
    tokens: list[int], labels: list[int]
) -> None:
    with pytest.raises(PackingError, match="outside the vocabulary"):
        await attachable().serve_rows(_rows(tokens, labels), RequestOptions())


async def test_an_engine_that_declines_the_rows_of_a_router_tells_all_of_them() -> None:
    engine, link = attachable(), StubLink()
    engine._path = path_of(link, vocab_size=100, label_vocab_size=90)
    engine._server = SimpleNamespace(records=SimpleNamespace(keeping=lambda *_: nullcontext()))
    exchange, reason = engine._path.exchange, StockReason.KNOWN_ANSWERS_DIFFER
    link.on_send = lambda rid, _: exchange.deliver(rid, stub_answer("declined", reason))
    result = await engine.serve_rows(_rows([5, 6], [4]), RequestOptions())
    assert (result.status, exchange.declined_reason) == (Status.DECLINED, reason)


async def test_rows_that_have_their_adapter_do_not_wait_in_a_pause() -> None:
    """SGLang unloads adapters in a pause, too, and waits until no request has them."""
    engine, link = attachable(), StubLink()
    engine._path = path_of(link, vocab_size=100, label_vocab_size=90)
    record = SimpleNamespace(error=None)
    records = SimpleNamespace(keeping=lambda *_: nullcontext(record))
    engine._server = SimpleNamespace(records=records)
    answer_at_once(link, engine._path.exchange, lambda _: stub_answer("failed"))

    async def begin_a_pause(request: Any) -> None:
        request.lora_id = "id"
        link.is_open.clear()

    async def release(_id: str) -> None:
        pass

    engine._manager = SimpleNamespace(
        _validate_and_resolve_lora=begin_a_pause, lora_registry=SimpleNamespace(release=release)
    )
    async with asyncio.timeout(10), engine.adapter("name", RequestOptions()) as adapter:
        rows = replace(_rows([5, 6], [4]), adapter=adapter)
        assert (await engine.serve_rows(rows, RequestOptions())).status is Status.FAILED
    assert isinstance(record.error, PackedForwardError)  # for logs
    assert link.admitted == 0


@pytest.mark.parametrize(
    ("found", "rows"), [([0.5, 2.0], [[0.5], [2.0]]), ([[0.5, 1], [2.0]], [[0.5, 1.0], [2.0]])]
)
async def test_a_head_with_one_class_gives_rows_of_one_number(
    found: list[Any], rows: list[list[float]]
) -> None:
    async def score_request(**arguments: Any) -> Any:
        return SimpleNamespace(scores=found, prompt_tokens=3, token_logprobs=None)

    engine = attachable()
    engine._manager = SimpleNamespace(score_request=score_request)
    answer = await engine.serve_stock(StockScore("r", {}, {}))
    assert messages.decode_from_engine(messages.encode(answer)) == StockAnswer("r", rows, 3)


@pytest.mark.parametrize("call", [StockScore("r", {}, {}), StockVectors("r", ["a"], None, "", {})])
async def test_what_does_not_travel_is_refused_where_it_is_made(call: Any) -> None:
    sparse = {"5": 0.25}

    async def score_request(**arguments: Any) -> Any:
        return SimpleNamespace(scores=[sparse], prompt_tokens=3, token_logprobs=None)

    async def generate_request(*_: Any) -> Any:
        yield [{"embedding": sparse, "meta_info": {"prompt_tokens": 3}}]

    engine = attachable()
    engine._manager = SimpleNamespace(
        score_request=score_request, generate_request=generate_request
    )
    answer = await engine.serve_stock(call)
    assert isinstance(answer, StockError)
    assert (answer.status, answer.message[-9:]) == (Status.REFUSED, "Use HTTP.")

from __future__ import annotations

import asyncio
import math
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sglang_prefill_ext.attach import messages
from sglang_prefill_ext.attach.messages import StockAnswer, StockError, StockScore, StockVectors
from sglang_prefill_ext.border.tokenizer_manager import attached
from sglang_prefill_ext.errors import PackedForwardError, PackingError, RequestError
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.texts.libraries import PROBES
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import WHOLE_VECTOR, Labels, Read, Vectors
from sglang_prefill_ext.wire.sampling import Sampling
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
        is_embedding_gemma=gemma,
    )
    manager = SimpleNamespace(
        model_config=model,
        is_generation=False,
        server_args=SimpleNamespace(disable_radix_cache=False),
        tokenizer=SimpleNamespace(backend_tokenizer=SimpleNamespace(encode_special_tokens=splits)),
    )
    link: Any = SimpleNamespace(
        tokenizer_json="{}",
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
    engine._link = SimpleNamespace(longest_prompt=lambda: 9, longest_packed=8)
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


def test_all_ids_of_the_vocabulary_do() -> None:
    attachable()._require_known(_rows([0, 99], [0, 89]))


def sampled(top_p: float) -> Sampling:
    return Sampling.one(temperature=1.0, top_p=top_p, min_p=0.0, top_k=5, seed=0, biases={})


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (Labels(num_best=1 << 28), "4096 MiB exceed the limit of 1024 MiB"),
        (Labels(num_best=92), "more tokens than the vocabulary of 90"),
        (Vectors(1 << 28), "2048 MiB exceed the limit of 1024 MiB"),
        (Labels(num_best=1, sampling=Sampling.joined([sampled(math.nan)] * 2)), "is drawn"),
        (Labels(num_best=1, sampling=Sampling.joined([sampled(0.5)] * 2)), "is drawn"),
    ],
    ids=["best", "too many", "vectors", "nan", "drawn"],
)
async def test_what_no_front_end_sends_is_refused(read: Read, error: str) -> None:
    rows = PackedRows(int_array([5, 6, 7]), 1, int_array([1, 1]), read)
    with pytest.raises(PackingError, match=error):
        await attachable().serve_rows(rows, RequestOptions())


def test_rows_as_large_as_the_whole_queue_are_taken() -> None:
    attachable()._require_fitting(
        PackedRows(int_array([5]), 0, int_array([1]), Labels(num_best=(1 << 27) - 2))
    )


def test_no_more_rows_are_taken_than_may_wait() -> None:
    engine, one = attachable(), np.ones(2**20 + 1, dtype=np.int32)
    for count, refusal in ((2**20, nullcontext()), (2**20 + 1, pytest.raises(PackingError))):
        rows = PackedRows(one[:count], 0, one[:count], Labels(int_array([4])))
        with refusal as error:
            engine._require_fitting(rows)
    assert "1048577 packed rows exceed the limit of 1048576 (--prefill-only" in str(error.value)


@pytest.mark.parametrize(("rows", "fits"), [(2**16, True), (2**17, False)])
def test_the_whole_prompts_that_an_encoder_makes_of_rows_count(rows: int, fits: bool) -> None:
    """A prefix of 4000 tokens takes 1 GB if 65536 rows repeat it."""
    tokens, lens = np.ones(4000 + rows, dtype=np.int32), np.ones(rows, dtype=np.int32)
    asked, engine = PackedRows(tokens, 4000, lens, Vectors(WHOLE_VECTOR)), attachable()
    engine._require_fitting(asked)  # a decoder's scheduler does not repeat it
    engine._path = replace(engine._path, encoder=object())
    with nullcontext() if fits else pytest.raises(PackingError, match="MiB exceed the limit"):
        engine._require_fitting(asked)


@pytest.mark.parametrize("embeds", [np.ones((1, 3)), np.full((1, 4), np.nan)], ids=["width", "nan"])
async def test_embeddings_that_the_model_cannot_take_are_refused(embeds: Any) -> None:
    overrides = embeds.astype(np.float32)
    tokens, read = int_array([5, -1]), Labels(int_array([4]))
    rows = PackedRows(tokens, 1, int_array([1]), read, overrides=overrides)
    with pytest.raises(RequestError, match="embed_overrides"):
        await attachable().serve_rows(rows, RequestOptions())


@pytest.mark.parametrize("encoder", [True, False])
def test_embeddings_for_a_model_that_takes_none_are_refused(encoder: bool) -> None:
    """They would break a forward, in which others' requests may be."""
    engine, table = attachable(), np.ones((1, 4), dtype=np.float32)
    rows = PackedRows(
        int_array([5, -1]), 1, int_array([1]), Labels(int_array([4])), overrides=table
    )
    engine._require_fitting(rows)
    kind = replace(engine._path.embeddings, with_tokens=not encoder)
    engine._path = replace(engine._path, encoder=encoder or None, embeddings=kind)
    with pytest.raises(PackingError, match="takes none"):
        engine._require_fitting(rows)


def test_rows_that_no_prompt_can_be_do_not_either() -> None:
    labels = Labels(int_array([4]))
    attachable()._require_known(PackedRows(int_array([5] * 11), 5, int_array([3, 3]), labels))
    with pytest.raises(PackingError, match="longer than the longest prompt of 8"):
        attachable()._require_known(PackedRows(int_array([5] * 11), 5, int_array([2, 4]), labels))


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

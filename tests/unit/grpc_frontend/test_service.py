"""The methods over real sockets, gRPC and ZMQ; the engine is a stub."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.rpc.error_details_pb2 import BadRequest
from google.rpc.status_pb2 import Status

from sglang_prefill_ext.attach.messages import StockAnswer, StockError, StockScore, StockVectors
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.grpc_frontend import prefill_pb2 as pb
from sglang_prefill_ext.grpc_frontend import service
from sglang_prefill_ext.wire import status as ends
from tests.unit.attach.engines import StubEngine, facts
from tests.unit.frontend.links import stub_answer
from tests.unit.grpc_frontend.calls import id_request, int32, int32_rows, served, text_request
from tests.unit.waiting import until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engine.sock"


def scores(response: pb.ScoreResponse) -> list[float]:
    found: list[float] = np.frombuffer(response.scores, "<f8").tolist()
    return found


@contextmanager
def fails(code: grpc.StatusCode, words: str) -> Iterator[pytest.ExceptionInfo[Any]]:
    """Check that a call fails, with this code and these words."""
    with pytest.raises(grpc.aio.AioRpcError, match=words) as caught:
        yield caught
    assert caught.value.code() is code


def wrong_field(error: grpc.aio.AioRpcError) -> str:
    (status,) = (value for name, value in error.trailing_metadata() if name.endswith("-bin"))
    found = BadRequest()
    assert Status.FromString(status).details[0].Unpack(found)
    return str(found.field_violations[0].field)


async def test_an_answer_over_the_limit_is_refused_without_a_traceback(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(StubEngine(), path, most_bytes=34) as (stub, _):
        with fails(grpc.StatusCode.RESOURCE_EXHAUSTED, "Ask for fewer items") as raised:
            await stub.Score(id_request([1], [[7]] * 3))
        assert "-bin" not in str(raised.value.trailing_metadata())  # it would be repeated
        answers = stub.ScoreStream(iter([id_request([1], [[7]])]))
        assert [scores(answer) async for answer in answers] == [[1.0, 1.0]]
    assert "Traceback" not in caplog.text


async def test_ids_are_packed_and_scored(path: Path) -> None:
    engine = StubEngine()
    async with served(engine, path) as (stub, metrics):
        request = id_request([1, 2], [[7], [8, 9]])
        request.return_token_logprobs = True
        response = await stub.Score(request)
        assert scores(response) == [1.0] * 4
        assert np.frombuffer(response.counts, "<i4").tolist() == [2, 2]
        assert np.frombuffer(response.token_logprobs, "<f4").tolist() == [0.0] * 4
        assert response.usage == pb.Usage(
            prompt_tokens=7, computed_tokens=5, cached_tokens=1, path=pb.PATH_PACKED
        )
        ((_, rows),) = engine.link.sent
        assert (rows.tokens.tolist(), rows.prefix_len) == ([1, 2, 7, 8, 9], 2)
        assert rows.read.normalised
        assert metrics.requests == {"packed": 1}


async def test_a_prefix_that_was_cached_for_several_forwards_counts_once(path: Path) -> None:
    engine = StubEngine()
    answer = stub_answer(values=[0.0] * 4, forwards=3, tokens_cached=6)
    engine.link.on_send = lambda rid, rows: engine.exchange.deliver(rid, answer)
    async with served(engine, path) as (stub, _):
        response = await stub.Score(id_request([1, 2], [[7], [8, 9]]))
    assert response.usage.cached_tokens == 2


async def test_texts_are_encoded_by_a_copy_of_the_engines_tokenizer(path: Path) -> None:
    engine = StubEngine()
    async with served(engine, path) as (stub, _):
        request = text_request("a ", "b c", "c")
        request.apply_softmax = True
        response = await stub.Score(request)
        assert scores(response) == [1.0, 1.0]
    ((_, rows),) = engine.link.sent
    assert rows.tokens.tolist() == [1, 2, 3, 3]
    assert not rows.read.normalised
    assert engine.link.encoded == []


@pytest.mark.parametrize("status", [ends.Status.REFUSED, ends.Status.FAILED])
async def test_of_a_long_error_clients_get_the_beginning(path: Path, status: ends.Status) -> None:
    engine = StubEngine()
    engine.stock_outcome = StockError("", status, "é" * 10_000)
    codes = {
        ends.Status.REFUSED: grpc.StatusCode.INVALID_ARGUMENT,
        ends.Status.FAILED: grpc.StatusCode.INTERNAL,
    }
    async with served(engine, path) as (stub, _):
        request = id_request([1], [[2]])
        request.options.stock = True
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await stub.Score(request)
    assert failed.value.code() is codes[status]
    assert str(failed.value.details()).startswith("é" * 500)


async def test_labels_of_each_items_own(path: Path) -> None:
    async with served(StubEngine(), path) as (stub, _):
        request = id_request([1], [[7], [8]])
        request.labels.CopyFrom(int32_rows([[4], [5, 6]]))
        request.apply_softmax = True
        response = await stub.Score(request)
    assert scores(response) == [1.0, 0.5, 0.5]
    assert np.frombuffer(response.counts, "<i4").tolist() == [1, 2]


async def test_embeddings_are_packed_in_the_places_of_their_tokens(path: Path) -> None:
    engine = StubEngine()
    halves = np.arange(16, dtype="<f2").tobytes()
    about = {"token_id": 7, "dtype": "float16", "width": 8, "items": halves}
    request = id_request([1, 2], [[7], [8, 7]])
    request.embed_overrides.CopyFrom(pb.EmbedOverrides(**about, item_counts=int32([1, 1])))
    async with served(engine, path) as (stub, _):
        assert scores(await stub.Score(request)) == [1.0] * 4
        request.embed_overrides.item_counts = int32([0, 2])
        engine.stock_outcome = StockAnswer("", [[0.25]], 2)
        stock = await stub.Score(request)
        assert stock.usage.reason == "unusual_input"
    ((_, rows),) = engine.link.sent
    assert rows.tokens.tolist() == [1, 2, -1, 8, -2]
    assert rows.overrides.tolist() == np.arange(16.0).reshape(2, 8).tolist()
    (call,) = engine.stock_calls
    assert isinstance(call, StockScore)
    assert call.arguments["items"] == [[7], [8, 7]]
    own = call.arguments["item_embed_overrides"]
    assert own == [None, np.arange(16.0).reshape(2, 8).tolist()]


@pytest.mark.parametrize("item_first", [False, True])
async def test_texts_without_embeddings_are_joined_whatever_the_placeholder(
    path: Path, item_first: bool
) -> None:
    engine = StubEngine()
    request = text_request("a", "b", "c")
    request.item_first = item_first
    request.embed_overrides.CopyFrom(pb.EmbedOverrides(token_id=7, dtype="float16", width=8))
    async with served(engine, path) as (stub, _):
        assert scores(await stub.Score(request)) == [1.0] * 2
    ((_, rows),) = engine.link.sent
    assert rows.num_prompt_tokens == 2, "words that the tokenizer of the stub does not know"


@pytest.mark.parametrize(
    ("known", "change", "reason"),
    [
        ({}, {"options": pb.Options(stock=True)}, "opted_out"),
        ({}, {"temperature": 0.5}, "unusual_input"),
        ({}, {"labels": pb.Int32Rows()}, "unusual_input"),
        ({}, {"labels": int32_rows([[4, 4]])}, "unusual_input"),
        ({"is_generation": False}, {}, "not_generation"),
        ({"declined": "multi_item_scoring"}, {}, "multi_item_scoring"),
    ],
)
async def test_what_is_not_packed_here_is_the_engines_call(
    path: Path, known: dict[str, object], change: dict[str, object], reason: str
) -> None:
    engine = StubEngine(facts(**known))
    engine.stock_outcome = StockAnswer("", [[0.25, 0.5], [1.0]], 9, [[-1.0, -2.0], [0.0]])
    request = id_request([1], [[7], [8]])
    for name in change:
        request.ClearField(name)
    request.MergeFrom(pb.ScoreRequest(**change))
    async with served(engine, path) as (stub, metrics):
        response = await stub.Score(request)
        assert scores(response) == [0.25, 0.5, 1.0]
        assert np.frombuffer(response.counts, "<i4").tolist() == [2, 1]
        assert np.frombuffer(response.token_logprobs, "<f4").tolist() == [-1.0, -2.0, 0.0]
        usage = pb.Usage(prompt_tokens=9, path=pb.PATH_ENGINE, reason=reason)
        assert response.usage == usage
        assert not metrics.requests, "the engine counts it"
    (call,) = engine.stock_calls
    assert isinstance(call, StockScore)
    assert (call.arguments["query"], call.arguments["items"]) == ([1], [[7], [8]])


async def test_texts_without_a_faithful_tokenizer_are_the_engines(path: Path) -> None:
    engine = StubEngine(facts(probes={"a": [2]}))
    engine.stock_outcome = StockAnswer("", [[0.25]], 2)
    async with served(engine, path) as (stub, _):
        response = await stub.Score(text_request("a", "b"))
        assert (scores(response), response.usage.reason) == ([0.25], "no_tokenizer")
        assert not response.token_logprobs
        assert scores(await stub.Score(id_request([1], [[2]]))) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (id_request([1], [[100]]), "out-of-vocabulary token id 100; valid ids are 0 to 99"),
        (id_request([-1], [[1]]), "out-of-vocabulary token id -1"),
        (id_request([], [[1], []]), "empty"),
        (id_request([1], [[1]] * 6), "6 items exceed the limit of 5"),
        (pb.ScoreRequest(query_ids=b"1", item_ids=int32_rows([[1]])), "query_ids: 1 bytes"),
    ],
)
async def test_wrong_requests_are_refused(
    path: Path, request_: pb.ScoreRequest, words: str
) -> None:
    engine = StubEngine()
    async with served(engine, path) as (stub, metrics):
        with fails(grpc.StatusCode.INVALID_ARGUMENT, words) as caught:
            await stub.Score(request_)
        assert "grpc-status-details-bin" in dict(caught.value.trailing_metadata())
        assert metrics.requests == {"refused": 1}
    assert not engine.link.sent


async def test_a_call_that_is_cancelled_or_late_leaves_nothing_behind(path: Path) -> None:
    engine = StubEngine(silent=True)
    async with served(engine, path) as (stub, _):
        call = stub.Score(id_request([1], [[2]]))
        await until(lambda: len(engine.link.sent) == 1)
        call.cancel()
        await until(lambda: len(engine.link.aborted) == 1)
        while len(engine.link.sent) == 1:  # its time may be over before it comes
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Score(id_request([1], [[2]]), timeout=0.2)
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: len(engine.link.aborted) == len(engine.link.sent))
        await until(lambda: engine.metrics.requests["aborted"] == 1)
        await until(lambda: engine.metrics.requests["expired"] > 0)
        assert {*+engine.metrics.requests} == {"aborted", "expired"}
    assert engine.link.options[0].deadline_ms is None
    assert engine.link.options[1].deadline_ms is not None


async def test_an_unforeseen_failure_of_the_front_end_is_internal(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError("so it goes")

    monkeypatch.setattr(service, "score", fail)
    async with served(StubEngine(), path) as (stub, _):
        with fails(grpc.StatusCode.INTERNAL, "OSError: so it goes"):
            await stub.Score(id_request([1], [[2]]))
    assert "A call failed" in caplog.text


async def test_an_unforeseen_failure_of_the_engine_is_internal(path: Path) -> None:
    engine = StubEngine(facts(is_generation=False))
    engine.stock_outcome = StockError("", ends.Status.FAILED, "RuntimeError: so it goes")
    async with served(engine, path) as (stub, _):
        with fails(grpc.StatusCode.INTERNAL, "so it goes"):
            await stub.Score(id_request([1], [[2]]))


async def test_a_stream_is_scored_message_by_message(path: Path) -> None:
    engine = StubEngine()

    async def requests() -> AsyncIterator[pb.ScoreRequest]:
        yield id_request([1, 2], [[3]])
        for width in (2, 3):
            yield pb.ScoreRequest(item_ids=int32_rows([[4]] * width))

    async with served(engine, path) as (stub, metrics):
        found = [scores(each) async for each in stub.ScoreStream(requests())]
        assert found == [[1.0] * 2, [1.0] * 4, [1.0] * 6]
        assert metrics.requests == {"packed": 3}
    assert [rows.num_rows for _, rows in engine.link.sent] == [1, 2, 3]


async def test_a_wrong_message_ends_its_stream_after_the_answers_before_it(path: Path) -> None:
    async def requests() -> AsyncIterator[pb.ScoreRequest]:
        yield id_request([1, 2], [[3]])
        yield id_request([1, 2], [[3]])

    async with served(StubEngine(), path) as (stub, _):
        call = stub.ScoreStream(requests())
        assert scores(await call.read()) == [1.0, 1.0]
        with fails(grpc.StatusCode.INVALID_ARGUMENT, "only the first message"):
            await call.read()


async def test_a_stream_that_is_left_leaves_nothing_behind(path: Path) -> None:
    engine = StubEngine(silent=True)

    async def requests() -> AsyncIterator[pb.ScoreRequest]:
        yield id_request([1, 2], [[3]])
        await asyncio.Event().wait()

    async with served(engine, path) as (stub, _):
        call = stub.ScoreStream(requests())
        await until(lambda: engine.link.sent)
        call.cancel()
        await until(lambda: engine.link.aborted)


async def test_vectors_of_texts_and_of_ids(path: Path) -> None:
    engine = StubEngine(facts(is_generation=False))
    engine.link.on_send = lambda rid, rows: engine.exchange.deliver(rid, engine.answer(rows))
    texts = pb.Prompts(texts=pb.Texts(texts=["a b", "c"]))
    ids = pb.Prompts(ids=int32_rows([[1, 2], [3]]))
    async with served(engine, path) as (stub, _):
        for prompts in (texts, ids):
            found = await stub.Embed(pb.EmbedRequest(prompts=prompts))
            assert np.frombuffer(found.vectors, "<f4").tolist() == [0.0] * 6
            assert found.width == 3
            assert found.usage == pb.Usage(prompt_tokens=3, path=pb.PATH_PACKED)
        classes = await stub.Classify(pb.ClassifyRequest(prompts=ids))
        assert np.frombuffer(classes.values, "<f4").tolist() == [0.0] * 6
        assert (classes.width, list(classes.class_names)) == (3, ["no", "yes"])
        wrong = pb.Prompts(ids=int32_rows([[1], [100]]))
        empty = pb.Prompts(ids=int32_rows([[1], []]))
        ends = (wrong, "token id 100"), (empty, "is empty"), (pb.Prompts(), "there are none")
        for prompts, words in ends:
            with pytest.raises(grpc.aio.AioRpcError, match=words):
                await stub.Embed(pb.EmbedRequest(prompts=prompts))


@pytest.mark.parametrize("method", ["Embed", "Classify"])
@pytest.mark.parametrize("options", [pb.Options(), pb.Options(stock=True)], ids=["packed", "stock"])
async def test_too_many_prompts_are_refused_on_either_path(
    path: Path, method: str, options: pb.Options
) -> None:
    engine = StubEngine(facts(is_generation=False))
    kind = {"Embed": pb.EmbedRequest, "Classify": pb.ClassifyRequest}[method]
    async with served(engine, path) as (stub, metrics):
        for prompts in (
            pb.Prompts(ids=int32_rows([[1]] * 6)),
            pb.Prompts(texts=pb.Texts(texts=["a"] * 6)),
        ):
            with fails(grpc.StatusCode.INVALID_ARGUMENT, "6 prompts exceed the limit") as caught:
                await getattr(stub, method)(kind(prompts=prompts, options=options))
            assert wrong_field(caught.value) == "prompts"
        assert metrics.requests == {"refused": 2}
    assert engine.link.sent == engine.stock_calls == []


@pytest.mark.parametrize("item_first", [False, True])
async def test_a_call_too_large_for_memory_or_for_the_model(path: Path, item_first: bool) -> None:
    config = PrefillOnlyConfig(max_items=500, max_queued_mib=1)
    engine = StubEngine(facts(config=config))
    engine.stock_outcome = StockError("", ends.Status.REFUSED, "a prompt is too long")
    request = id_request([1] * 1000, [[2]])
    request.item_first = item_first
    async with served(engine, path) as (stub, _):
        with pytest.raises(grpc.aio.AioRpcError, match="a prompt is too long"):
            await stub.Score(request)
        (call,) = engine.stock_calls
        assert isinstance(call, StockScore)
        assert (call.arguments["query"], call.arguments["items"]) == ([1] * 1000, [[2]])
        labels = list(range(70))
        request = id_request([1] * 600, [[2]] * 500, labels)
        request.item_first = item_first
        with fails(grpc.StatusCode.INVALID_ARGUMENT, r"35000 numbers .* limit of 1") as caught:
            await stub.Score(request)
        assert wrong_field(caught.value) == "items"
    assert not engine.link.sent


@pytest.mark.parametrize("generates", [True, False])
async def test_texts_that_are_encoded_already_reach_the_engine_as_ids(
    path: Path, generates: bool
) -> None:
    engine = StubEngine(facts(is_generation=generates, longest_prompt=2))
    engine.stock_outcome = StockAnswer("", [[0.25]], 2)
    async with served(engine, path) as (stub, _):
        if generates:
            await stub.Score(text_request("a b ", "c"))
        else:
            prompts = pb.Prompts(texts=pb.Texts(texts=["a b c"]))
            await stub.Embed(pb.EmbedRequest(prompts=prompts))
    (call,) = engine.stock_calls
    if isinstance(call, StockScore):
        assert (call.arguments["query"], call.arguments["items"]) == ([], [[1, 2, 3]])
    else:
        assert call.prompts == [[1, 2, 3]]


@pytest.mark.parametrize("method", ["Embed", "Classify"])
async def test_vectors_of_an_adapter(path: Path, method: str) -> None:
    engine = StubEngine(facts(is_generation=False))
    ids = pb.Prompts(ids=int32_rows([[1, 2], [3]]))
    kind = {"Embed": pb.EmbedRequest, "Classify": pb.ClassifyRequest}[method]
    async with served(engine, path) as (stub, _):
        call = getattr(stub, method)
        found = await call(kind(prompts=ids, adapter="tuned"))
        assert found.usage.path == pb.PATH_PACKED
        with fails(grpc.StatusCode.INVALID_ARGUMENT, "adapter: no 'other'") as caught:
            await call(kind(prompts=ids, adapter="other"))
    assert wrong_field(caught.value) == "adapter"
    assert [rows.adapter for _, rows in engine.link.sent] == ["id-of-tuned"]
    assert engine.acquired == engine.released == ["tuned"]


@pytest.mark.parametrize(
    ("known", "request_", "reason"),
    [
        ({}, {"options": pb.Options(stock=True), "adapter": "tuned"}, "opted_out"),
        ({}, {}, "no_vectors"),
        ({"is_generation": False}, {"dimensions": 2}, "dimensions"),
    ],
)
async def test_vectors_that_are_not_packed_here_are_the_engines(
    path: Path, known: dict[str, object], request_: dict[str, object], reason: str
) -> None:
    engine = StubEngine(facts(**known))
    engine.stock_outcome = StockAnswer("", [[0.5, 0.25]], 2)
    prompts = pb.Prompts(ids=int32_rows([[1, 2]]))
    async with served(engine, path) as (stub, _):
        found = await stub.Embed(pb.EmbedRequest(prompts=prompts, **request_))
        assert np.frombuffer(found.vectors, "<f4").tolist() == [0.5, 0.25]
        assert found.usage == pb.Usage(prompt_tokens=2, path=pb.PATH_ENGINE, reason=reason)
    (call,) = engine.stock_calls
    assert isinstance(call, StockVectors)
    assert call.prompts == [[1, 2]]
    assert call.dimensions == request_.get("dimensions")
    assert call.adapter == request_.get("adapter", "")


@pytest.mark.parametrize("shown", [None, "Bearer wrong", "Basic right", "right", "Bearer "])
async def test_who_shows_no_token_is_let_into_no_method(path: Path, shown: str | None) -> None:
    engine = StubEngine()
    metadata = None if shown is None else (("authorization", shown),)

    async def requests() -> AsyncIterator[pb.ScoreRequest]:
        await asyncio.Event().wait()
        yield pb.ScoreRequest()

    async with served(engine, path, "other", "right") as (stub, _):
        for call in (
            stub.Score(id_request([1], [[2]]), metadata=metadata),
            stub.ScoreStream(requests(), metadata=metadata).read(),
        ):
            with fails(grpc.StatusCode.UNAUTHENTICATED, "bearer token"):
                await asyncio.wait_for(call, 60)
        for scheme in ("Bearer", "bearer"):  # as over HTTP
            known = (("authorization", f"{scheme} right"),)
            assert scores(await stub.Score(id_request([1], [[2]]), metadata=known)) == [1.0, 1.0]
    assert len(engine.link.sent) == 2

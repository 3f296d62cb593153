"""The clients over gRPC, on a front end in this process; its engine is a stub."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import numpy as np
import pytest
import trustme
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from sglang_prefill_ext.attach.messages import StockError, StockScore
from sglang_prefill_ext.client import AsyncPrefillClient, Options, PrefillClient, Retries
from sglang_prefill_ext.client.grpc_calls import error_of
from sglang_prefill_ext.errors import (
    ClientError,
    ConfigError,
    DeadlineExceededError,
    PrefillExtError,
    RequestError,
    ServerBusyError,
    ServerRefusedError,
    ServerUnavailableError,
)
from sglang_prefill_ext.wire import status as ends
from tests.unit.attach.engines import StubEngine, facts
from tests.unit.frontend.links import stub_answer
from tests.unit.grpc_frontend.calls import listening
from tests.unit.waiting import until

Ask: TypeAlias = Callable[..., Awaitable[Any]]
ONCE = Retries(max_attempts=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engine.sock"


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """Call a method of either client: ``ask(address, method, *arguments, **settings)``."""

    def in_thread(address: str, method: str, settings: dict[str, Any], call: Any) -> Any:
        with PrefillClient(f"grpc://{address}", **settings) as client:
            return call(getattr(client, method))

    async def sync(address: str, method: str, call: Any, **settings: Any) -> Any:
        return await asyncio.to_thread(in_thread, address, method, settings, call)

    async def aio(address: str, method: str, call: Any, **settings: Any) -> Any:
        async with AsyncPrefillClient(f"grpc://{address}", **settings) as client:
            return await call(getattr(client, method))

    return sync if request.param == "sync" else aio


async def test_scores_of_ids_in_parts(path: Path, ask: Ask) -> None:
    engine = StubEngine()
    async with listening(engine, path) as (address, _):
        found = await ask(
            address,
            "score",
            lambda score: score(
                np.array([1, 2]),
                [[7], np.array([8, 9]), [3]],
                [4, 5],
                return_token_logprobs=True,
                options=Options(priority=3, keep_prefix=True, timeout_s=60),
            ),
            max_items_per_request=2,
        )
    assert found.scores.tolist() == [[0.5, 0.5]] * 3
    assert found.token_logprobs.tolist() == [[0.0, 0.0]] * 3
    assert found.prompt_tokens == 3 + 4 + 3
    assert sorted(rows.num_rows for _, rows in engine.link.sent) == [1, 2]
    assert {options.priority for options in engine.link.options} == {3}
    assert all(options.keep_prefix and options.deadline_ms for options in engine.link.options)


async def test_scores_of_texts_and_labels_of_each(path: Path, ask: Ask) -> None:
    async with listening(StubEngine(), path) as (address, _):
        found = await ask(
            address,
            "score",
            lambda score: score("a ", ["b", "c"], [[4], [5]], apply_softmax=False),
        )
    assert found.scores.tolist() == [[1.0], [1.0]]
    assert found.token_logprobs is None


async def test_vectors(path: Path, ask: Ask) -> None:
    engine = StubEngine(facts(is_generation=False))
    async with listening(engine, path) as (address, _):
        for method in ("embed", "classify"):
            for prompts in (["a", "b c"], [[1], [2, 3]]):
                found = await ask(address, method, lambda call, given=prompts: call(given))
                assert (found.shape, found.dtype) == ((2, 3), np.float32)
    assert engine.acquired == []


async def test_vectors_with_an_adapter(path: Path, ask: Ask) -> None:
    engine = StubEngine(facts(is_generation=False))
    async with listening(engine, path) as (address, _):
        for method in ("embed", "classify"):
            await ask(address, method, lambda call: call(["a"], adapter="tuned"))
            with pytest.raises(ServerRefusedError, match="adapter: no 'other'") as caught:
                await ask(address, method, lambda call: call(["a"], adapter="other"))
            assert caught.value.status == 400
    assert {rows.adapter for _, rows in engine.link.sent} == {"id-of-tuned"}
    assert len(engine.link.sent) == 2


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("failed", ServerRefusedError),
        ("aborted", ServerUnavailableError),
        ("expired", DeadlineExceededError),
        ("rejected", ServerBusyError),
        ("unreachable", ServerUnavailableError),
    ],
)
async def test_a_bad_end_is_the_same_error_as_by_http(
    path: Path, ask: Ask, status: str, error: type[PrefillExtError]
) -> None:
    engine = StubEngine()
    answer = stub_answer(status, "so it goes", retry_after_s=2.5)
    engine.link.on_send = lambda rid, rows: engine.exchange.deliver(rid, answer)
    async with listening(engine, path) as (address, _):
        with pytest.raises(error, match=r"/v1/score with 1 item: .*so it goes") as caught:
            await ask(address, "score", lambda score: score([1], [[2]], [4]), retries=ONCE)
    if status == "rejected":
        assert caught.value.retry_after_s == 2.5  # type: ignore[attr-defined]


async def test_what_is_refused_has_the_status_of_http(path: Path, ask: Ask) -> None:
    async with listening(StubEngine(), path, "key") as (address, _):
        for settings, status, words in (
            ({"api_key": "key"}, 400, "token id 100"),
            ({"api_key": "other"}, 401, "bearer token"),
        ):
            with pytest.raises(ServerRefusedError, match=words) as caught:
                await ask(address, "score", lambda score: score([1], [[100]], [4]), **settings)
            assert caught.value.status == status


@pytest.mark.parametrize(
    ("query", "item", "options", "words"),
    [
        ("\ud800", "b", Options(), "query: .* lone surrogates"),
        ("a", "\udc00", Options(), r"items\[0\]: .* lone surrogates"),
        ("a", "b", Options(priority=2**31), "/v1/score with 1 item: gRPC cannot carry it"),
    ],
    ids=["query", "item", "priority"],
)
async def test_what_a_message_cannot_hold_is_refused_before_it_is_sent(
    ask: Ask, query: str, item: str, options: Options, words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        await ask("127.0.0.1:9", "score", lambda score: score(query, [item], [4], options=options))


async def test_a_call_that_finds_nobody_is_repeated_until_its_time_is_over(
    path: Path, ask: Ask
) -> None:
    with pytest.raises(ServerUnavailableError, match=r"UNAVAILABLE: .*Start front ends there"):
        await ask("127.0.0.1:9", "score", lambda score: score([1], [[2]], [4]), retries=ONCE)
    engine = StubEngine(silent=True)
    async with listening(engine, path) as (address, _):
        late = Options(timeout_s=0.3)
        with pytest.raises(DeadlineExceededError, match="longer timeout_s"):
            await ask(address, "score", lambda score: score([1], [[2]], [4], options=late))


async def test_an_unknown_certificate_is_said_with_the_remedy() -> None:
    issued = trustme.CA().issue_cert("127.0.0.1")
    pair = issued.private_key_pem.bytes(), issued.cert_chain_pems[0].bytes()
    server = grpc.aio.server()
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    await server.start()
    async with AsyncPrefillClient(f"grpcs://127.0.0.1:{port}", retries=ONCE) as client:
        with pytest.raises(ServerUnavailableError, match=r"Name the PEM .* GRPC_DEFAULT_SSL_ROOTS"):
            await client.score([1], [[2]], [4])
    await server.stop(None)


async def test_a_client_that_is_closed_within_a_call_says_so(path: Path) -> None:
    engine = StubEngine(silent=True)
    async with listening(engine, path) as (address, _):
        client = PrefillClient(f"grpc://{address}")
        aio = AsyncPrefillClient(f"grpc://{address}")
        asking = asyncio.ensure_future(asyncio.to_thread(client.score, [1], [[2]], [4]))
        asking_too = asyncio.ensure_future(aio.score([1], [[2]], [4]))
        await until(lambda: len(engine.link.sent) == 2)
        client.close()
        await aio.close()
        for each in (asking, asking_too):
            with pytest.raises(ClientError, match="The client is closed"):
                await each


async def test_a_call_that_is_cancelled_before_its_client_is_closed_stays_cancelled(
    path: Path,
) -> None:
    engine = StubEngine(silent=True)
    async with listening(engine, path) as (address, _):
        aio = AsyncPrefillClient(f"grpc://{address}")
        asking = asyncio.ensure_future(aio.score([1], [[2]], [4]))
        await until(lambda: engine.link.sent)
        asking.cancel()
        await aio.close()
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_a_client_that_is_closed_before_a_repeat_says_so() -> None:
    client = AsyncPrefillClient("grpc://127.0.0.1:9", retries=Retries(first_wait_s=0.1))
    asking = asyncio.ensure_future(client.embed(["a"]))
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises(ClientError, match="The client is closed"):
        await asking


async def test_the_stock_path_can_be_asked_for(path: Path, ask: Ask) -> None:
    engine = StubEngine()
    engine.stock_outcome = StockError("", ends.Status.EXPIRED, "so it goes")
    async with listening(engine, path) as (address, _):
        stock = Options(stock=True, timeout_s=60)
        with pytest.raises(DeadlineExceededError, match="so it goes"):
            await ask(address, "score", lambda score: score([1], [[2]], [4], options=stock))
    (call,) = engine.stock_calls
    assert isinstance(call, StockScore)
    assert call.headers["x-prefill-only"] == "off"


class Failure(grpc.RpcError):  # type: ignore[misc]
    """A failed call, with details that say when to retry."""

    def __init__(self, details: bytes) -> None:
        self._details = details

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.RESOURCE_EXHAUSTED

    def details(self) -> str:
        return "full"

    def trailing_metadata(self) -> Any:
        return (("grpc-status-details-bin", self._details),)


def asking_for(seconds: int) -> bytes:
    status = Status()
    status.details.add().Pack(RetryInfo(retry_delay=Duration(seconds=seconds)))
    return bytes(status.SerializeToString())


def test_whatever_a_server_asks_for_can_be_slept() -> None:
    longest = error_of("asked", Failure(asking_for(315_576_000_000)))
    assert isinstance(longest, ServerBusyError)
    assert longest.retry_after_s == 315_576_000_000
    backwards = error_of("asked", Failure(asking_for(-5)))
    assert isinstance(backwards, ServerBusyError)
    assert backwards.retry_after_s == 0


def test_details_that_cannot_be_read_are_none() -> None:
    broken_detail = Status()
    broken_detail.details.add(type_url="type.googleapis.com/google.rpc.RetryInfo", value=b"\xff")
    for details in (b"\xff\xff", broken_detail.SerializeToString()):
        assert isinstance(error_of("asked", Failure(details)), ServerRefusedError)


@pytest.mark.parametrize("kind", [PrefillClient, AsyncPrefillClient])
async def test_a_key_is_not_sent_in_the_clear_without_a_word(kind: Any) -> None:
    clear = r"api_key goes to example\.org in the clear.*grpcs://"
    with pytest.warns(UserWarning, match=clear) as told:
        kind("grpc://example.org:1", api_key="key")
    assert [each.filename for each in told] == [__file__]
    kind("grpcs://example.org:1", api_key="key")
    for address in ("localhost", "localhost:1", "127.0.0.1:1", "[::1]", "[::1]:1"):
        kind(f"grpc://{address}", api_key="key")
    with pytest.raises(ConfigError, match="grpc://x:1/a has more than a host"):
        kind("grpc://x:1/a")
    with pytest.raises(ConfigError, match="grpc://x:1 contains a name") as raised:
        kind("grpc://me:secret@x:1")
    assert "secret" not in str(raised.value)

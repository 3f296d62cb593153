"""Both clients against a real HTTP server; every test runs for each of them."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

import httpx
import numpy as np
import pytest
import trustme

from sglang_prefill_ext.client import AsyncPrefillClient, Options, PrefillClient, Retries, exchange
from sglang_prefill_ext.errors import (
    ClientError,
    ConfigError,
    DeadlineExceededError,
    PrefillExtError,
    RequestError,
    ServerBusyError,
    ServerRefusedError,
    ServerUnavailableError,
    UnexpectedAnswerError,
)
from tests.unit.client.stand_in import Reply, StandIn, answer, value_of

QUICK = Retries(first_wait_s=0.01)
Method = Literal["score", "embed", "classify"]
Ask = Callable[..., Any]


def ask_threads(
    url: str, method: Method, *args: Any, settings: Any = None, times: int = 1, **kwargs: Any
) -> Any:
    with PrefillClient(url, **{"retries": QUICK, **(settings or {})}) as client:
        return [getattr(client, method)(*args, **kwargs) for _ in range(times)][-1]


def ask_asyncio(
    url: str, method: Method, *args: Any, settings: Any = None, times: int = 1, **kwargs: Any
) -> Any:
    async def ask() -> Any:
        async with AsyncPrefillClient(url, **{"retries": QUICK, **(settings or {})}) as client:
            return [await getattr(client, method)(*args, **kwargs) for _ in range(times)][-1]

    return asyncio.run(ask())


@pytest.fixture(params=[ask_threads, ask_asyncio], ids=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Ask:
    found: Ask = request.param
    return found


def test_scores(ask: Ask, stand_in: StandIn) -> None:
    scores = ask(stand_in.url, "score", "q", ["a", "b"], [1, 2], return_token_logprobs=True)
    wanted = np.array([[value_of(item), 1 - value_of(item)] for item in "ab"])
    np.testing.assert_array_equal(scores.scores, wanted)
    np.testing.assert_array_equal(scores.token_logprobs, np.log(wanted + 1))
    assert scores.prompt_tokens == 20
    (seen,) = stand_in.seen
    assert seen.path == "/v1/score"
    assert seen.body["apply_softmax"] is True
    assert seen.headers["content-type"] == "application/json"
    assert not {"authorization", "x-prefill-only", "x-prefill-only-timeout-ms"} & set(seen.headers)


def test_all_arguments_of_a_score_arrive(ask: Ask, stand_in: StandIn) -> None:
    fields = {"apply_softmax": False, "item_first": True, "temperature": 0.5}
    ask(stand_in.url, "score", "q", ["a"], [1], return_token_logprobs=True, **fields)
    assert stand_in.seen[0].body.items() >= (fields | {"return_token_logprobs": True}).items()


def test_embeddings_and_classes(ask: Ask, stand_in: StandIn) -> None:
    vectors = ask(stand_in.url, "embed", ["a", "b"], dimensions=2)
    np.testing.assert_array_equal(vectors, np.float32([[value_of("a"), 2], [value_of("b"), 2]]))
    assert stand_in.seen[-1].body["dimensions"] == 2
    assert "lora_path" not in stand_in.seen[-1].body
    for method in ("embed", "classify"):
        ask(stand_in.url, method, [[7]], adapter="tuned")
        assert stand_in.seen[-1].body["lora_path"] == "tuned"
    logits = ask(stand_in.url, "classify", [[7], [8]])
    np.testing.assert_array_equal(logits, np.float32([[value_of([i]), 1, 2] for i in (7, 8)]))


@pytest.mark.parametrize("method", ["score", "embed", "classify"])
def test_options_and_key_become_headers(ask: Ask, stand_in: StandIn, method: Method) -> None:
    options = Options(priority=3, timeout_s=60, keep_prefix=True, stock=True)
    args = ("q", ["a"], [1]) if method == "score" else (["a"],)
    ask(stand_in.url, method, *args, settings={"api_key": "secret"}, options=options)
    headers = stand_in.seen[0].headers
    assert headers["authorization"] == "Bearer secret"
    assert headers["x-prefill-only-priority"] == "3"
    assert headers["x-prefill-only-keep-prefix"] == "on"
    assert headers["x-prefill-only"] == "off"
    assert 50_000 < int(headers["x-prefill-only-timeout-ms"]) <= 60_000


def test_long_lists_go_in_parts_and_come_back_in_order(ask: Ask, stand_in: StandIn) -> None:
    stand_in.will(Reply(503), *[Reply()] * 2)
    items = [[i] for i in range(25)]
    scores = ask(stand_in.url, "score", [7], items, [1], settings={"max_items_per_request": 4})
    np.testing.assert_array_equal(scores.scores[:, 0], [value_of(item) for item in items])
    assert scores.prompt_tokens == 250
    assert len(stand_in.seen) == 7 + 3
    assert max(len(seen.body["items"]) for seen in stand_in.seen) == 4


@pytest.mark.parametrize("lost", [Reply(), Reply(503, "starting"), Reply(429, "full")])
def test_a_server_that_was_away_or_busy_is_asked_again(
    ask: Ask, stand_in: StandIn, lost: Reply
) -> None:
    stand_in.will(lost, lost)
    assert ask(stand_in.url, "embed", ["a"]).shape == (1, 2)
    assert len(stand_in.seen) == 3
    assert stand_in.seen[0].body == stand_in.seen[2].body


def test_retry_after_is_waited_for(ask: Ask, stand_in: StandIn) -> None:
    stand_in.will(Reply(429, '{"message": "full"}', {"Retry-After": "1"}))
    ask(stand_in.url, "embed", ["a"])
    first, second = stand_in.seen
    assert second.at - first.at >= 1.0


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (Reply(429, '{"message": "why"}', {"Retry-After": "0"}), ServerBusyError),
        (Reply(503, '{"message": "why"}'), ServerUnavailableError),
    ],
)
def test_repeats_come_to_an_end(
    ask: Ask, stand_in: StandIn, reply: Reply, error: type[PrefillExtError]
) -> None:
    stand_in.will(*[reply] * 10)
    with pytest.raises(error, match=r"/v1/embeddings with 1 item: HTTP .* why"):
        ask(stand_in.url, "embed", ["a"], settings={"retries": Retries(3, first_wait_s=0.01)})
    assert len(stand_in.seen) == 3


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, ServerRefusedError),
        (401, ServerRefusedError),
        (500, ServerRefusedError),
        (504, DeadlineExceededError),
    ],
)
def test_what_would_fail_again_is_asked_once(
    ask: Ask, stand_in: StandIn, status: int, error: type[PrefillExtError]
) -> None:
    stand_in.will(Reply(status, '{"message": "no such token"}'))
    with pytest.raises(error, match="no such token"):
        ask(stand_in.url, "score", "q", ["a"], [1])
    assert len(stand_in.seen) == 1


def test_no_server_is_said_with_the_remedy(ask: Ask) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ServerUnavailableError, match=f"no connection with {url} .*Start a"):
            ask(url, "embed", ["a"])


def test_an_unknown_certificate_is_said_with_the_remedy(ask: Ask) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(tls)

    def serve(listening: socket.socket) -> None:
        while True:
            try:
                with tls.wrap_socket(listening.accept()[0], server_side=True):
                    pass
            except (ssl.SSLError, ConnectionError):
                continue  # the client has refused the certificate
            except OSError:
                return  # closed

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = threading.Thread(target=serve, args=[listening])
        server.start()
        with pytest.raises(ServerUnavailableError, match=r"Name the PEM .* SSL_CERT_FILE"):
            ask(f"https://127.0.0.1:{listening.getsockname()[1]}", "embed", ["a"])
        listening.shutdown(socket.SHUT_RDWR)
        server.join()


def test_the_time_left_shrinks_with_every_repeat(ask: Ask, stand_in: StandIn) -> None:
    stand_in.will(Reply(429, "full", {"Retry-After": "1"}))
    ask(stand_in.url, "embed", ["a"], options=Options(timeout_s=30))
    first, second = (int(seen.headers["x-prefill-only-timeout-ms"]) for seen in stand_in.seen)
    assert second <= first - 1000


def test_the_deadline_ends_the_repeats(ask: Ask, stand_in: StandIn) -> None:
    stand_in.will(Reply(429, "full", {"Retry-After": "60"}))
    start = time.monotonic()
    with pytest.raises(ServerBusyError):
        ask(stand_in.url, "embed", ["a"], options=Options(timeout_s=30))
    assert time.monotonic() - start < 30


def test_a_server_that_does_not_answer_is_left(
    ask: Ask, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sglang_prefill_ext.client.exchange._SLACK_S", 0.1)
    stand_in.will(Reply(200, after_s=60))
    with pytest.raises(DeadlineExceededError, match=r"did not answer in time.*longer timeout_s"):
        ask(stand_in.url, "embed", ["a"], options=Options(timeout_s=3))
    assert len(stand_in.seen) == 1


def test_the_deadline_is_that_of_the_whole_call(
    ask: Ask, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sglang_prefill_ext.client.exchange._SLACK_S", 60.0)
    stand_in.delay_s = 1.2
    one_at_a_time = {"max_items_per_request": 1}
    if ask is ask_asyncio:
        one_at_a_time["max_concurrency"] = 1
    with pytest.raises(DeadlineExceededError, match=r"2 s were over before it was sent"):
        ask(stand_in.url, "embed", ["a"] * 9, settings=one_at_a_time, options=Options(timeout_s=2))
    assert 1 <= len(stand_in.seen) <= 2


@pytest.mark.parametrize("text", ["<html>hello</html>", "{}", "[]", '{"data": []}', '{"data": 5}'])
def test_what_is_no_such_server_is_told(ask: Ask, stand_in: StandIn, text: str) -> None:
    stand_in.will(Reply(200, text))
    with pytest.raises(UnexpectedAnswerError, match="Check that base_url is an SGLang server"):
        ask(stand_in.url, "embed", ["a"])
    assert len(stand_in.seen) == 1


def test_wrong_arguments_send_nothing(ask: Ask, stand_in: StandIn) -> None:
    with pytest.raises(RequestError, match="prompts"):
        ask(stand_in.url, "embed", "a")
    assert stand_in.seen == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"max_items_per_request": 0}, "max_items_per_request: 0 is below 1")],
)
def test_wrong_settings_are_named(ask: Ask, settings: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ask("http://x", "embed", ["a"], settings=settings)
    with pytest.raises(ConfigError, match=r"base_url: 'localhost:30000' is no address"):
        ask("localhost:30000", "embed", ["a"])


@pytest.mark.parametrize("most", [1, 3])
async def test_parts_go_together_up_to_the_limit(stand_in: StandIn, most: int) -> None:
    stand_in.delay_s, stand_in.answers_together = 0.05, most
    limits = {"max_items_per_request": 1, "max_concurrency": most}
    async with AsyncPrefillClient(stand_in.url, **limits) as client:
        await client.embed([str(i) for i in range(9)])
    assert stand_in.most_together == most


async def test_one_failed_part_ends_the_call(stand_in: StandIn) -> None:
    stand_in.will(Reply(400, "no"))
    limits = {"max_items_per_request": 1, "max_concurrency": 1}
    async with AsyncPrefillClient(stand_in.url, **limits) as client:
        with pytest.raises(ServerRefusedError):
            await client.embed(["a"] * 5)
        await asyncio.sleep(0.1)
        assert len(stand_in.seen) <= 2  # the next part may have been on its way
        assert (await client.embed(["a"])).shape == (1, 2)


SAYS = {"x-prefill-only-arrays": "int32"}
IDS = ([1, 2], [[3], [4, 5]], [1, 2])


def test_token_ids_go_as_arrays_to_a_server_that_says_it_reads_them(
    ask: Ask, stand_in: StandIn
) -> None:
    body = {"items": IDS[1], "label_token_ids": IDS[2], "return_token_logprobs": False}
    scores = json.dumps(answer("/v1/score", body))
    refusal = Reply(400, '{"message": "Input should be a valid string"}')
    stand_in.will(Reply(200, scores, SAYS), Reply(200, scores), refusal)
    ask(stand_in.url, "score", *IDS, times=4)
    arrays = [isinstance(seen.body["items"], dict) for seen in stand_in.seen]
    # The third answer refuses arrays, so this request is sent again with lists, as is the next.
    assert arrays == [False, True, True, False, False]
    assert (
        stand_in.seen[1].body["items"]["counts"]
        == base64.b64encode(np.array([1, 2], "<i4").tobytes()).decode()
    )


def test_a_stock_server_only_sees_lists(ask: Ask, stand_in: StandIn) -> None:
    ask(stand_in.url, "score", *IDS, times=2)
    assert [seen.body["items"] for seen in stand_in.seen] == [IDS[1]] * 2


def test_what_a_server_that_reads_arrays_refuses_is_asked_once(ask: Ask, stand_in: StandIn) -> None:
    body = {"items": IDS[1], "label_token_ids": IDS[2], "return_token_logprobs": False}
    scores = json.dumps(answer("/v1/score", body))
    stand_in.will(Reply(200, scores, SAYS), Reply(400, '{"message": "no such token"}', SAYS))
    with pytest.raises(ServerRefusedError, match="no such token"):
        ask(stand_in.url, "score", *IDS, times=2)
    assert [isinstance(seen.body["items"], dict) for seen in stand_in.seen] == [False, True]


def raising(error: Exception) -> dict[str, Any]:
    """Settings of a client whose transport raises this error."""

    def handle(_request: httpx.Request) -> httpx.Response:
        raise error

    return {"transport": httpx.MockTransport(handle), "retries": Retries(1)}


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (httpx.DecodingError("broken gzip"), UnexpectedAnswerError),
        (httpx.TooManyRedirects("round"), UnexpectedAnswerError),
        (httpx.LocalProtocolError("illegal"), ClientError),
        (httpx.ConnectError("gone"), ServerUnavailableError),
        (httpx.ReadTimeout("late"), DeadlineExceededError),
    ],
)
def test_all_errors_are_ours_and_hold_no_password(
    ask: Ask, error: Exception, wanted: type[PrefillExtError]
) -> None:
    with pytest.raises(wanted, match="http://x:80/a") as raised:
        ask("http://me:secret@x:80/a", "embed", ["a"], settings=raising(error))
    assert type(raised.value) is wanted
    assert "secret" not in str(raised.value)


def test_what_cannot_be_read_names_no_password(ask: Ask, stand_in: StandIn) -> None:
    for text in ("{}", "[" * 100_000):
        stand_in.will(Reply(200, text))
        with pytest.raises(UnexpectedAnswerError, match="http://127") as raised:
            ask(stand_in.url.replace("//", "//me:secret@"), "embed", ["a"])
        assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "me:secret@localhost:30000",
        "ftp://me:secret@x",
        "FTP://me:secret@x",
        "http://me:secret@x:p",
        "grpc://",
        "grpc://:1",
    ],
)
def test_wrong_addresses_are_told_without_a_password(ask: Ask, url: str) -> None:
    with pytest.raises(ConfigError, match="is no address") as raised:
        ask(url, "embed", ["a"])
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("url", ["http://x", "grpc://x:1"])
async def test_a_closed_client_says_so(url: str) -> None:
    async with AsyncPrefillClient(url) as aio:
        pass
    with pytest.raises(ClientError, match="The client is closed"):
        await aio.embed(["a"])
    with PrefillClient(url) as client:
        pass
    with pytest.raises(ClientError, match="The client is closed"):
        client.embed(["a"])


@pytest.mark.parametrize("answered", [True, False])
async def test_a_client_that_is_closed_within_a_call_says_so(answered: bool) -> None:
    def lost() -> httpx.Response:
        if answered:
            return httpx.Response(503)
        raise httpx.ReadError("closed")

    def lose(_request: httpx.Request) -> httpx.Response:
        client.close()
        return lost()

    async def lose_too(_request: httpx.Request) -> httpx.Response:
        await aio.close()
        return lost()

    client = PrefillClient("http://x", transport=httpx.MockTransport(lose))
    aio = AsyncPrefillClient("http://x", transport=httpx.MockTransport(lose_too))
    with pytest.raises(ClientError, match="The client is closed"):
        client.embed(["a"])
    with pytest.raises(ClientError, match="The client is closed"):
        await aio.embed(["a"])


@pytest.mark.parametrize("key", ["secret\n", "gehéim"])
@pytest.mark.parametrize("url", ["http://x", "grpcs://x:1"])
def test_a_key_that_no_header_can_hold_is_refused(ask: Ask, url: str, key: str) -> None:
    with pytest.raises(ConfigError, match="api_key") as raised:
        ask(url, "embed", ["a"], settings={"api_key": key})
    assert key not in str(raised.value)


def test_connections_are_kept_alive(
    ask: Ask, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    ask(stand_in.url, "embed", ["a"])
    assert stand_in.seen[0].path == "/v1/embeddings"
    with exchange.http_client(httpx.Client, "http://x", None) as http:
        own: Any = http._transport
        assert (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1) in own._pool._socket_options
        assert not http._mounts
    monkeypatch.setenv("http_proxy", "http://proxy")
    with exchange.http_client(httpx.Client, "http://x", None) as http:
        assert http._mounts


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("all_proxy", "socks5://127.0.0.1:1", "proxies in the environment"),
        ("http_proxy", "ftp://127.0.0.1:1", "proxies in the environment"),
        ("http_proxy", "http://a..b:1", "proxies in the environment"),
        ("http_proxy", "a..b:1", "proxies in the environment"),
        ("SSL_CERT_FILE", "/dev/null", "Correct SSL_CERT_FILE"),
        ("SSL_CERT_FILE", "/missing/authorities.pem", "Correct SSL_CERT_FILE"),
    ],
)
def test_an_environment_that_cannot_work_is_named(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=words):
        ask("http://x", "embed", ["a"])


def test_a_proxy_that_does_not_answer_is_named(
    ask: Ask, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://user:secret@127.0.0.1:1")
    once = {"retries": Retries(1)}
    with pytest.raises(ServerUnavailableError, match=r"the proxy .*//127\.0\.0\.1:1, ") as raised:
        ask(stand_in.url, "embed", ["a"], settings=once)
    assert "secret" not in str(raised.value)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    ask(stand_in.url, "embed", ["a"], settings=once)

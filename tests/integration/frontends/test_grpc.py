"""gRPC front ends in processes of their own, on one real engine, which the last test kills."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import trustme
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from sglang_prefill_ext.client import EmbedOverrides, Options, PrefillClient
from sglang_prefill_ext.grpc_frontend import prefill_pb2 as pb
from sglang_prefill_ext.grpc_frontend.prefill_pb2_grpc import PrefillStub
from tests.conftest import EXTENSION_FLAGS
from tests.integration.support.client import (
    LABELS,
    Client,
    Json,
    random_ids,
    score_body,
    wait_until,
)
from tests.integration.support.grpc_frontends import (
    SERVICE,
    FrontEnds,
    connected,
    front_ends,
    health,
    request_of,
    rows_of,
)
from tests.integration.support.own_server import Serving, serving
from tests.integration.support.parity import TOLERANCE, assert_same
from tests.integration.support.processes import scheduler_pid, stopped, tokens_under_way
from tests.integration.support.stock_metrics import growth
from tests.unit.grpc_frontend.calls import int32, int32_rows

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

IDS = score_body(7, 40, [3, 12, 1, 30, 8])
TEXTS: Json = {
    "query": "which one? ",
    "items": ["naïve café", "漢字", "b", "<s> a  b\n"],
    "label_token_ids": LABELS,
    "return_token_logprobs": True,
}
OWN_LABELS = IDS | {"label_token_ids": [[5], [9, 17], [4_000], [5, 9, 17], [3]]}
LONG = score_body(2, 500, [200] * 200)
TOKEN = "s3cret"
HIDDEN = 64
"""Numbers of an embedding of the model."""


@pytest.fixture(scope="module")
def attach(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("attach") / "private" / "engine.sock"


@pytest.fixture(scope="module")
def engine(model_dir: Callable[[str], Path], attach: Path) -> Iterator[Serving]:
    flags = (*EXTENSION_FLAGS, f"--prefill-only-attach={attach}")
    with serving(model_dir("micro"), "grpc-engine", *flags) as running:
        yield running


@pytest.fixture(scope="module")
def client(engine: Serving) -> Client:
    return engine.client


@pytest.fixture(scope="module")
def plain(engine: Serving, attach: Path) -> Iterator[FrontEnds]:
    """Two front ends without any secrets."""
    with front_ends(attach, "grpc-plain", "--processes=2", "--compression=gzip") as running:
        wait_until(lambda: len(attached(engine.client)) == 2)
        yield running


@pytest.fixture
def stub(plain: FrontEnds) -> Iterator[PrefillStub]:
    with connected(plain.address) as stub:
        yield stub


def attached(client: Client) -> list[int]:
    """Ids of the attached processes."""
    return sorted(each["pid"] for each in client.status()["attached"])


def assert_answers(answer: pb.ScoreResponse, wanted: Json) -> None:
    assert_same(rows_of(answer.scores, answer.counts, "<f8"), wanted["scores"])
    if wanted["token_logprobs"] is None:
        assert not answer.token_logprobs
    else:
        found = rows_of(answer.token_logprobs, answer.counts, "<f4")
        assert_same(found, wanted["token_logprobs"])
    assert answer.usage.prompt_tokens == wanted["usage"]["prompt_tokens"]


# The numbers


def test_items_count_as_requests_in_sglangs_metrics(client: Client, stub: PrefillStub) -> None:
    before = client.counters()["frontend.requests.packed"]
    with growth(client) as grown:
        assert stub.Score(request_of(score_body(97, 3, [1, 2]))).scores
    # What front ends count comes later; these are the engine's.
    wait_until(lambda: client.counters()["frontend.requests.packed"] > before)
    by_name = {name: more for (name, _), more in grown.items()}
    assert by_name["sglang:num_requests_total"] == 2
    assert by_name["sglang:prompt_tokens_total"] == 9
    assert by_name["sglang:e2e_request_latency_seconds_count"] == 2


def test_front_ends_encode_shared_text_once(client: Client, stub: PrefillStub) -> None:
    before = client.counters()
    sent: list[pb.ScoreResponse] = []

    def moved(name: str) -> int:
        return client.counters()[name] - before[name]

    def spliced() -> bool:  # not before a front end is ready, and not by every call
        sent.append(stub.Score(request_of(TEXTS)))
        return moved("frontend.spliced") > 0

    wait_until(spliced)
    wait_until(lambda: {each["encoder"] for each in client.status()["attached"]} == {"fastokens"})
    wait_until(lambda: moved("frontend.requests.packed") == len(sent))  # the rest comes later
    assert moved("frontend.encoding_mismatches") == 0


@pytest.mark.parametrize("body", [IDS, TEXTS, OWN_LABELS], ids=["ids", "texts", "own labels"])
@pytest.mark.parametrize(
    "fields",
    [{}, {"apply_softmax": True, "temperature": 0.5}, {"item_first": True}],
    ids=["plain", "softmax", "item first"],
)
def test_scores_are_those_of_http(
    client: Client, stub: PrefillStub, body: Json, fields: Json
) -> None:
    before = client.counters()
    answer = stub.Score(request_of(body, **fields))
    assert answer.usage.path == pb.PATH_PACKED
    wait_until(
        lambda: client.counters()["frontend.requests.packed"] > before["frontend.requests.packed"]
    )
    moved = client.counters() - before
    assert moved["frontend.requests.packed"] == moved["scheduler.requests.ok"] == 1
    assert moved["frontend.items"] == len(body["items"])
    assert_answers(answer, client.score(body | fields))


@pytest.mark.parametrize("body", [IDS, TEXTS], ids=["ids", "texts"])
def test_the_python_client_gets_the_same_numbers_either_way(
    engine: Serving, plain: FrontEnds, stub: PrefillStub, body: Json
) -> None:
    asked = {name: body[name] for name in ("query", "items", "label_token_ids")}
    with (
        PrefillClient(engine.server.base_url) as http,
        PrefillClient(f"grpc://{plain.address}", max_items_per_request=2) as over_grpc,
    ):
        wanted = http.score(**asked, return_token_logprobs=True)
        found = over_grpc.score(**asked, return_token_logprobs=True)
    np.testing.assert_allclose(found.scores, wanted.scores, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(found.token_logprobs, wanted.token_logprobs, rtol=0, atol=TOLERANCE)
    assert found.prompt_tokens == wanted.prompt_tokens


@pytest.mark.parametrize("path", ["on", "off"])
def test_embeddings_in_place_of_tokens_count_either_way(
    engine: Serving, plain: FrontEnds, stub: PrefillStub, path: str
) -> None:
    rng = np.random.default_rng(3)
    asked = {"query": [5, 7, 6], "items": [[7, 9], [8], [7, 7, 9]], "label_token_ids": [5, 9]}
    embeds = [rng.standard_normal((count, HIDDEN)).astype(np.float32) for count in (1, 1, 2)]
    overrides = EmbedOverrides(7, query=embeds[0], items=[embeds[1], None, embeds[2]])
    options = Options(stock=path == "off")
    with (
        PrefillClient(engine.server.base_url) as http,
        PrefillClient(f"grpc://{plain.address}") as over_grpc,
    ):
        bare = http.score(**asked)
        wanted = http.score(**asked, embed_overrides=overrides)
        found = over_grpc.score(**asked, embed_overrides=overrides, options=options)
    np.testing.assert_allclose(found.scores, wanted.scores, rtol=0, atol=TOLERANCE)
    assert np.abs(bare.scores - wanted.scores).max() > 10 * TOLERANCE


def test_what_a_front_end_does_not_pack_is_answered_and_counted_by_the_engine(
    client: Client, stub: PrefillStub
) -> None:
    opted_out = request_of(IDS)
    opted_out.options.stock = True
    refused = {
        "prompt_too_long": request_of(TEXTS | {"query": "the word " * 20_000}),
        "unusual_input": request_of(TEXTS, temperature=3.0),
    }
    with client.counting() as moved:
        answer = stub.Score(opted_out)
        for request in refused.values():
            with pytest.raises(grpc.RpcError) as caught:
                stub.Score(request)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert moved["frontend.text_batches"] == 0, "SGLang has encoded texts again"
    assert (answer.usage.path, answer.usage.reason) == (pb.PATH_ENGINE, "opted_out")
    assert_answers(answer, client.score(IDS, stock=True))
    assert "temperature requires apply_softmax" in caught.value.details()
    for reason in ("opted_out", *refused):
        assert moved[f"frontend.fallbacks.{reason}"] == 1


def test_a_stream_scores_as_many_items_as_one_likes(client: Client, stub: PrefillStub) -> None:
    rng = random.Random(3)
    items = [random_ids(rng, rng.randrange(1, 9)) for _ in range(700)]  # 400 at most in one request
    body = {"query": random_ids(rng, 30), "items": items, "label_token_ids": LABELS}

    def requests() -> Iterator[pb.ScoreRequest]:
        yield request_of(body | {"items": items[:250]})
        for start in range(250, 700, 250):
            yield pb.ScoreRequest(item_ids=int32_rows(items[start : start + 250]))

    answers = list(stub.ScoreStream(requests()))
    found = [row for each in answers for row in rows_of(each.scores, each.counts, "<f8")]
    parts = [client.score(body | {"items": items[a : a + 350]}) for a in (0, 350)]
    assert_same(found, parts[0]["scores"] + parts[1]["scores"])
    assert [len(each.counts) // 4 for each in answers] == [250, 250, 200]


# Calls that end badly


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (request_of(IDS | {"items": [[8_000]]}), "out-of-vocabulary token id 8000"),
        (request_of(IDS | {"items": [[-1]]}), "out-of-vocabulary token id -1"),
        (request_of(IDS | {"query": [], "items": [[1], []]}), "empty"),
        (request_of(IDS | {"items": [[1]] * 401}), "401 items exceed the limit of 400"),
        (request_of(IDS | {"label_token_ids": [8_000]}), "8000"),
        (pb.ScoreRequest(query_ids=b"12345", item_ids=int32_rows([[1]])), "query_ids: 5 bytes"),
        (pb.ScoreRequest(item_ids=pb.Int32Rows(values=int32([1, 2]))), "counts add up to 0"),
        (pb.ScoreRequest(query_text="q", item_ids=int32_rows([[1]])), "mixed"),
    ],
)
def test_wrong_requests_are_refused_and_harm_nobody(
    stub: PrefillStub, request_: pb.ScoreRequest, words: str
) -> None:
    with pytest.raises(grpc.RpcError, match=words) as caught:
        stub.Score(request_)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert stub.Score(request_of(IDS)).usage.path == pb.PATH_PACKED


def test_a_call_for_vectors_of_a_generating_model_is_refused(stub: PrefillStub) -> None:
    prompts = pb.Prompts(ids=int32_rows([[1, 2]]))
    with pytest.raises(grpc.RpcError) as caught:
        stub.Embed(pb.EmbedRequest(prompts=prompts))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("way", ["late", "cancelled"])
def test_a_call_that_is_late_or_cancelled_leaves_nothing_behind(
    engine: Serving, client: Client, stub: PrefillStub, way: str
) -> None:
    memory = client.memory()
    with client.counting() as moved:
        with stopped(scheduler_pid(engine.server)):
            # Time enough to reach the scheduler, however busy the machine.
            call = stub.Score.future(request_of(LONG), timeout=10.0 if way == "late" else None)
            wait_until(lambda: tokens_under_way(client) > 0)
            if way == "late":
                assert call.exception().code() is grpc.StatusCode.DEADLINE_EXCEEDED
            call.cancel()
            wait_until(lambda: tokens_under_way(client) == 0)
        client.wait_idle()
    ended = {name: moved[f"scheduler.requests.{name}"] for name in ("aborted", "expired")}
    assert sum(ended.values()) == 1
    client.assert_memory_returns_to(memory)
    assert stub.Score(request_of(IDS)).usage.path == pb.PATH_PACKED


def test_garbage_collection_reaches_attached_front_ends(client: Client, stub: PrefillStub) -> None:
    assert stub.Score(request_of(IDS)).usage.path == pb.PATH_PACKED
    reports = client.collect_garbage("stats")
    attached = {each["pid"] for each in client.status()["attached"]}
    assert {each["pid"] for each in reports if each["role"] == "grpc_front_end"} == attached
    assert len(attached) == 2
    assert all(each["frozen"] > 10_000 for each in reports)


# Who is let in


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def secured(
    engine: Serving, attach: Path, authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FrontEnds]:
    """One front end with TLS on both sides, a token, and a limit of one MiB."""
    directory = tmp_path_factory.mktemp("tls")
    key, cert, ca, tokens = (directory / name for name in ("key", "cert", "ca", "tokens"))
    issued = authority.issue_cert("localhost")
    issued.private_key_pem.write_to_path(str(key))
    issued.cert_chain_pems[0].write_to_path(str(cert))
    authority.cert_pem.write_to_path(str(ca))
    tokens.write_text(f"other\n{TOKEN}\n")
    flags = (f"--tls-key={key}", f"--tls-cert={cert}", f"--client-ca={ca}", f"--tokens={tokens}")
    limits = ("--processes=1", "--max-message-mib=1", "--no-reflection")
    with front_ends(attach, "grpc-secured", *flags, *limits) as running:
        yield running


def credentials(authority: trustme.CA, own: trustme.CA | None) -> grpc.ChannelCredentials:
    """Credentials of a client that trusts one authority; its own certificate may be absent."""
    trusted = authority.cert_pem.bytes()
    if own is None:
        return grpc.ssl_channel_credentials(trusted)
    issued = own.issue_cert("client")
    pair = issued.private_key_pem.bytes(), issued.cert_chain_pems[0].bytes()
    return grpc.ssl_channel_credentials(trusted, *pair)


def test_a_client_with_certificate_and_token_is_served(
    secured: FrontEnds, authority: trustme.CA
) -> None:
    with connected(secured.address, credentials(authority, authority)) as stub:
        known = (("authorization", f"Bearer {TOKEN}"),)
        assert stub.Score(request_of(IDS), metadata=known).usage.path == pb.PATH_PACKED
        for metadata in (None, (("authorization", "Bearer wrong"),)):
            with pytest.raises(grpc.RpcError) as caught:
                stub.Score(request_of(IDS), metadata=metadata)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        huge = pb.ScoreRequest(query_ids=bytes(1 << 21))
        with pytest.raises(grpc.RpcError) as caught:
            stub.Score(huge, metadata=known)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert TOKEN not in Path(f"/proc/{secured.process.pid}/cmdline").read_text()


@pytest.mark.parametrize(
    "who", ["no certificate", "a stranger's certificate", "no TLS", "wrong CA"]
)
def test_other_clients_get_no_connection(
    secured: FrontEnds, authority: trustme.CA, who: str
) -> None:
    with connected(secured.address, credentials(authority, authority)):
        pass  # it serves
    stranger = trustme.CA()
    channels = {
        "no certificate": lambda: grpc.secure_channel(
            secured.address, credentials(authority, None)
        ),
        "a stranger's certificate": lambda: grpc.secure_channel(
            secured.address, credentials(authority, stranger)
        ),
        "no TLS": lambda: grpc.insecure_channel(secured.address),
        "wrong CA": lambda: grpc.secure_channel(secured.address, credentials(stranger, stranger)),
    }
    with channels[who]() as channel:
        stub = PrefillStub(channel)  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.RpcError) as caught:
            stub.Score(request_of(IDS), timeout=120)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


# Health, reflection, and processes that come and go


def test_health_and_reflection(plain: FrontEnds, stub: PrefillStub) -> None:
    with grpc.insecure_channel(plain.address) as channel:
        assert [health(channel, name) for name in ("", SERVICE)] == ["SERVING"] * 2
        services = ProtoReflectionDescriptorDatabase(channel).get_services()
    assert set(services) == {
        SERVICE,
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }


def test_a_front_end_that_is_killed_loses_its_own_calls_and_a_repeat_succeeds(
    plain: FrontEnds, client: Client, stub: PrefillStub
) -> None:
    wait_until(lambda: len(attached(client)) >= 2)
    wanted = client.score(IDS)
    lost: list[grpc.StatusCode] = []
    served: list[pb.ScoreResponse] = []
    by_client: list[list[list[float]]] = []
    stop = threading.Event()

    def asked_again(own: PrefillStub) -> pb.ScoreResponse:
        for _ in range(5):  # the connection may look alive for a moment longer
            try:
                return own.Score(request_of(IDS), timeout=60)
            except grpc.RpcError as error:
                lost.append(error.code())
                time.sleep(0.2)
        raise AssertionError("five attempts in a row were lost")

    def caller() -> None:
        with connected(plain.address) as own:
            while not stop.is_set():
                served.append(asked_again(own))

    def python_client() -> None:
        with PrefillClient(f"grpc://{plain.address}") as own:
            while not stop.is_set():
                found = own.score(IDS["query"], IDS["items"], LABELS, apply_softmax=False)
                by_client.append(found.scores.tolist())

    threads = [threading.Thread(target=each) for each in (*[caller] * 6, python_client)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(served) >= 12)
    victims = children(plain.process.pid)
    os.kill(victims[0], signal.SIGKILL)
    seen = len(served)
    wait_until(lambda: len(served) >= seen + 60)
    stop.set()
    for thread in threads:
        thread.join()
    assert set(lost) <= {grpc.StatusCode.UNAVAILABLE}
    assert len(lost) <= 12  # those under way, and perhaps one more on each connection
    for answer in served:
        assert_answers(answer, wanted)
    for found in by_client:
        assert_same(found, wanted["scores"])
    wait_until(lambda: len(children(plain.process.pid)) == 2)
    assert victims[1] in children(plain.process.pid)
    wait_until(lambda: victims[0] not in attached(client))
    wait_until(lambda: set(children(plain.process.pid)) <= set(attached(client)))
    client.wait_idle()
    assert "another one starts in" in plain.log.read_text()


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return sorted(map(int, text.split()))


def test_calls_under_way_are_answered_before_front_ends_go(
    engine: Serving, client: Client, attach: Path
) -> None:
    with (
        front_ends(attach, "grpc-drained", "--processes=1", "--grace-s=100") as running,
        connected(running.address) as stub,
    ):
        with stopped(scheduler_pid(engine.server)):
            call = stub.Score.future(request_of(LONG), timeout=100)
            wait_until(lambda: tokens_under_way(client) > 0)
            running.process.send_signal(signal.SIGTERM)
            with grpc.insecure_channel(running.address) as another:
                wait_until(lambda: health(another) != "SERVING")  # it is going down
            assert not call.done()
            assert running.process.poll() is None
        assert len(call.result().scores) == 8 * 200 * len(LABELS)
        assert running.process.wait(120) == 0


def test_a_killed_engine_is_unavailable_at_once(
    engine: Serving, plain: FrontEnds, stub: PrefillStub
) -> None:
    with stopped(scheduler_pid(engine.server)), grpc.insecure_channel(plain.address) as channel:
        call = stub.Score.future(request_of(LONG), timeout=100)
        wait_until(lambda: tokens_under_way(engine.client) > 0)
        assert not call.done()
        assert engine.server.pid is not None
        os.kill(engine.server.pid, signal.SIGKILL)
        begin_s = time.monotonic()
        assert call.exception().code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.RpcError) as caught:
            stub.Score(request_of(IDS), timeout=100)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "Try again" in caught.value.details()
        assert time.monotonic() - begin_s < 60  # long before the deadline of either
        wait_until(lambda: health(channel) == "NOT_SERVING")

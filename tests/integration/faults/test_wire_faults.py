"""Clients that break the protocol: what they get, and that other clients are not affected."""

from __future__ import annotations

import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import msgspec
import psutil
import pytest
import zmq

from sglang_prefill_ext.attach import messages
from sglang_prefill_ext.attach.messages import Beat, Hello, Rows
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.grpc_frontend import prefill_pb2 as pb
from sglang_prefill_ext.grpc_frontend.prefill_pb2_grpc import PrefillStub
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedRows, to_bytes
from sglang_prefill_ext.wire.read import Labels, Vectors
from tests.conftest import EXTENSION_FLAGS
from tests.integration.support.client import Client, Json, score_body, wait_until
from tests.integration.support.grpc_frontends import (
    FrontEnds,
    connected,
    front_ends,
    request_of,
    rows_of,
)
from tests.integration.support.load import steady_load
from tests.integration.support.own_server import Serving, serving
from tests.integration.support.parity import assert_same, assert_same_answers
from tests.integration.support.processes import open_files, stopped

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

GOOD = score_body(3, 40, [3, 12, 1])
LARGE = score_body(4, 5, [1] * 400)  # an answer of more than 50 kB
HEAD = (
    b"POST /v1/score HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n"
)
MANY = 40
"""Clients that misbehave at a time."""


@pytest.fixture(scope="module")
def attach(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults") / "private" / "engine.sock"


@pytest.fixture(scope="module")
def engine(model_dir: Callable[[str], Path], attach: Path) -> Iterator[Serving]:
    flags = (*EXTENSION_FLAGS, f"--prefill-only-attach={attach}")
    with serving(model_dir("micro"), "faults-engine", *flags) as running:
        yield running


@pytest.fixture(scope="module")
def client(engine: Serving) -> Client:
    return engine.client


@pytest.fixture(scope="module")
def front_end(engine: Serving, attach: Path) -> Iterator[FrontEnds]:
    flags = ("--processes=1", "--max-message-mib=1")
    with front_ends(attach, "faults-grpc", *flags) as running, connected(running.address):
        yield running


@pytest.fixture(autouse=True)
def _nothing_is_left(engine: Serving, client: Client) -> Iterator[None]:
    """Check afterwards that memory and requests are as before, and that no traceback was logged."""
    memory, logged = client.memory(), engine.server.log_path.stat().st_size
    yield
    wait_until(lambda: not any(each["in_flight"] for each in client.status()["attached"]))
    client.assert_memory_returns_to(memory)
    assert b"Traceback" not in engine.server.log_path.read_bytes()[logged:]


@contextmanager
def unharmed(client: Client, front_end: FrontEnds | None = None) -> Iterator[None]:
    """Run well-behaved HTTP and gRPC clients meanwhile; all must get right answers."""
    wanted = client.score(GOOD)
    served: list[pb.ScoreResponse] = []
    stop = threading.Event()

    def ask(address: str) -> None:
        with connected(address) as stub:
            while not stop.is_set():
                served.append(stub.Score(request_of(GOOD), timeout=60))

    with ThreadPoolExecutor(1) as pool, steady_load(client, GOOD, workers=2) as answers:
        asking = pool.submit(ask, front_end.address) if front_end is not None else None
        try:
            yield
            before = len(answers), len(served)
            wait_until(lambda: len(answers) > before[0] + 4)
            wait_until(lambda: asking is None or asking.done() or len(served) > before[1] + 4)
        finally:
            stop.set()
    if asking is not None:
        asking.result()
    assert_same_answers(answers, [wanted] * len(answers))
    for each in served:
        assert_same(rows_of(each.scores, each.counts, "<f8"), wanted["scores"])


def connection(client: Client, receive_bytes: int | None = None) -> socket.socket:
    """A connection with the HTTP server."""
    url = client.http.base_url
    raw = socket.socket()
    if receive_bytes is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    raw.settimeout(60)
    raw.connect((url.host, url.port))
    return raw


def http_request(body: Json) -> bytes:
    content = json.dumps(body).encode()
    return HEAD % len(content) + content


def status_of(raw: socket.socket) -> int:
    """Read the next answer; return its status."""
    return int(raw.recv(64).split(b" ", 2)[1])


# HTTP


def test_clients_that_dribble_hold_up_nobody_and_are_answered_in_the_end(
    client: Client, front_end: FrontEnds
) -> None:
    content = http_request(GOOD)
    with ExitStack() as stack:
        slow = [stack.enter_context(connection(client)) for _ in range(MANY)]
        with unharmed(client, front_end):
            for start in range(8):  # within the head
                for raw in slow:
                    raw.sendall(content[start : start + 1])
            for raw in slow[: MANY // 2]:  # within the body
                raw.sendall(content[8:-1])
        for raw in slow[: MANY // 2]:
            raw.sendall(content[-1:])
            assert status_of(raw) == 200
    wait_until(lambda: client.status()["frontend"]["in_flight"] == 0)


@pytest.mark.parametrize("part", [b"x-a: " + b"a" * 1019, b"a:\r\n" * 256])
def test_a_head_without_end_is_refused(engine: Serving, client: Client, part: bytes) -> None:
    process = psutil.Process(engine.server.pid)
    with unharmed(client), ExitStack() as stack:
        before = process.memory_info().rss
        for _ in range(MANY):
            raw = stack.enter_context(connection(client))
            raw.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n" + part * 16)  # and would go on
            assert status_of(raw) == 431
        assert process.memory_info().rss - before < MANY << 20
    assert b"Invalid HTTP" not in engine.server.log_path.read_bytes()


def test_long_heads_that_end_are_read(client: Client) -> None:
    content = http_request(GOOD)
    padded = content.replace(b"host: x\r\n", b"host: x\r\nx-a: " + b"a" * 15_000 + b"\r\n")
    with connection(client) as raw:
        for start in range(0, len(padded), 999):  # slowly
            raw.sendall(padded[start : start + 999])
        assert status_of(raw) == 200
    with connection(client) as raw:
        raw.sendall(padded * 3)  # at once
        answers = raw.makefile("rb")
        for _ in range(3):
            assert answers.readline().startswith(b"HTTP/1.1 200")
            length = 0
            while (line := answers.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            assert json.loads(answers.read(length))["scores"]


def test_a_body_that_ends_early_is_nobodys_error(engine: Serving, client: Client) -> None:
    with unharmed(client), client.counting() as moved:
        for _ in range(MANY):
            with connection(client) as raw:
                raw.sendall(http_request(GOOD)[:-5])
    assert moved["frontend.requests.failed"] == moved["frontend.requests.refused"] == 0
    assert b"ClientDisconnect" not in engine.server.log_path.read_bytes()


def test_a_client_that_never_reads_is_waited_for_alone(engine: Serving, client: Client) -> None:
    pid = engine.server.pid
    assert pid is not None
    with unharmed(client):
        pass  # everything that is opened only once is open now
    before = open_files(pid)
    with unharmed(client), ExitStack() as stack:
        for _ in range(4):
            raw = stack.enter_context(connection(client, receive_bytes=4096))
            raw.sendall(http_request(LARGE) * 3)
        time.sleep(2)
    wait_until(lambda: open_files(pid) <= before)
    assert client.score(LARGE)["usage"]["prompt_tokens"] == 400 * 6


def test_a_flood_of_bad_bodies_is_refused_one_by_one(client: Client, front_end: FrontEnds) -> None:
    huge = GOOD | {"query": [7] * 300_000}
    bad: dict[str, tuple[bytes, int]] = {
        "oversized": (json.dumps(huge).encode(), 400),
        "cut off": (json.dumps(GOOD).encode()[:-3], 400),
        "of another type": (json.dumps(GOOD | {"items": {"a": 1}}).encode(), 400),
        "broken array": (json.dumps(GOOD | {"query": {"values": "?"}}).encode(), 400),
        "binary": (bytes(range(256)) * 40, 400),
        "deeply nested": (b"[" * 100_000, 400),
    }

    def post(name: str) -> tuple[str, int, str]:
        headers = {"content-type": "application/json"}
        response = client.http.post("/v1/score", content=bad[name][0], headers=headers)
        return name, response.status_code, response.text

    with unharmed(client, front_end), ThreadPoolExecutor(4) as pool:
        for name, status, text in pool.map(post, list(bad) * 5):
            assert status == bad[name][1], (name, text[:300])
            assert json.loads(text)["message"]


# gRPC


def test_a_flood_of_bad_messages_is_refused_one_by_one(
    client: Client, front_end: FrontEnds
) -> None:
    good = request_of(GOOD).SerializeToString()
    code = grpc.StatusCode
    bad = {
        "oversized": (pb.ScoreRequest(query_ids=bytes(2 << 20)), code.RESOURCE_EXHAUSTED),
        "cut off": (good[:-3], code.UNKNOWN),
        "no message": (b"\xff" * 100, code.UNKNOWN),
        "broken array": (pb.ScoreRequest(query_ids=b"123"), code.INVALID_ARGUMENT),
        "another type": (pb.EmbedRequest(), code.INVALID_ARGUMENT),
    }
    with grpc.insecure_channel(front_end.address) as channel:
        call = channel.unary_unary("/prefill_ext.v1.Prefill/Score", _serialised)
        with unharmed(client, front_end):
            for name in list(bad) * 8:
                message, wanted = bad[name]
                with pytest.raises(grpc.RpcError) as caught:
                    call(message, timeout=60)
                assert caught.value.code() is wanted, name
                assert caught.value.details()


def _serialised(message: pb.ScoreRequest | pb.EmbedRequest | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()


def test_a_message_that_grows_when_it_is_decompressed_is_cut_off(
    client: Client, front_end: FrontEnds
) -> None:
    (child,) = psutil.Process(front_end.process.pid).children()
    large = pb.ScoreRequest(query_ids=bytes(256 << 20))  # 256 kB on the wire; 1 MiB is allowed
    with connected(front_end.address) as stub, unharmed(client, front_end):
        before = child.memory_info().rss
        with pytest.raises(grpc.RpcError) as refused:
            stub.Score(large, compression=grpc.Compression.Gzip)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert child.memory_info().rss - before < 64 << 20


def test_connections_that_dribble_hold_up_no_other_call(
    client: Client, front_end: FrontEnds
) -> None:
    host, port = front_end.address.split(":")
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)
    with ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection((host, port))) for _ in range(MANY)]
        with unharmed(client, front_end):
            for number in range(len(preface)):
                for raw in slow:
                    raw.sendall(preface[number : number + 1])


def test_a_stream_whose_answers_nobody_reads_is_waited_for_alone(
    client: Client, front_end: FrontEnds
) -> None:
    request, streamed = request_of(LARGE), 2_000
    more = pb.ScoreRequest(item_ids=request.item_ids)
    options = (("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1))
    with grpc.insecure_channel(front_end.address, options) as channel:
        stub = PrefillStub(channel)  # type: ignore[no-untyped-call]
        with client.counting() as moved:
            with unharmed(client, front_end):
                answers = stub.ScoreStream(iter([request, *[more] * streamed]))
                next(answers)
                time.sleep(4)
            time.sleep(2 * messages.BEAT_S)  # until the front end has told what it has served
        answers.cancel()
    # Good requests have a few items, so the two kinds can be told apart.
    few, many = len(GOOD["items"]), len(LARGE["items"])
    packed, items = moved["frontend.requests.packed"], moved["frontend.items"]
    served = (items - few * packed) // (many - few)
    assert 1 <= served < streamed / 2, "more was computed than anybody takes"


def test_a_front_end_that_stands_still_does_the_engine_no_harm(
    client: Client, front_end: FrontEnds
) -> None:
    (process,) = psutil.Process(front_end.process.pid).children()
    with connected(front_end.address) as stub:
        stub.Score(request_of(GOOD))
        with unharmed(client), stopped(process.pid):
            calls = [stub.Score.future(request_of(GOOD), timeout=4) for _ in range(MANY)]
            for call in calls:
                assert call.exception().code() is grpc.StatusCode.DEADLINE_EXCEEDED
            wait_until(lambda: not client.status()["attached"])
        wait_until(lambda: client.status()["attached"] != [])
        assert stub.Score(request_of(GOOD), timeout=60).usage.path == pb.PATH_PACKED


# The socket of front ends


def test_a_front_end_that_asks_and_never_reads_does_the_engine_no_harm(
    client: Client, front_end: FrontEnds, attach: Path
) -> None:
    rows = PackedRows(int_array([5, 6, 7]), 1, int_array([1, 1]), Labels(int_array([8, 9])))
    asked = 500

    def answered() -> int:
        return client.counters()["scheduler.requests.ok"]

    before = answered()
    with zmq.Context() as context, context.socket(zmq.SocketType.DEALER) as deaf:
        deaf.setsockopt(zmq.SocketOption.RCVHWM, 1)
        deaf.setsockopt(zmq.SocketOption.LINGER, 0)
        deaf.connect(f"ipc://{attach}")
        deaf.send(messages.encode(Hello(pid=os.getpid())))
        with unharmed(client, front_end), client.counting() as moved:
            for number in range(asked):
                ask = Rows(f"r{number}", to_bytes(rows), RequestOptions())
                deaf.send(messages.encode(ask))
            wait_until(lambda: answered() - before >= asked)
        assert moved["scheduler.requests.ok"] >= asked
        assert isinstance(messages.decode_from_engine(deaf.recv()), messages.Facts)


VALID = PackedRows(int_array([5, 6, 7]), 1, int_array([1, 1]), Labels(int_array([8, 9])))


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (replace(VALID, tokens=int_array([5, 6, 1 << 20])), RequestOptions()),
        (replace(VALID, read=Labels(int_array([8, 1 << 20]))), RequestOptions()),
        (replace(VALID, read=Vectors(-1)), RequestOptions()),
        (VALID, RequestOptions(deadline_ms=math.nan)),
    ],
    ids=["token", "label", "vector", "deadline"],
)
def test_rows_that_no_scheduler_can_serve_fail_alone(
    client: Client, front_end: FrontEnds, attach: Path, rows: PackedRows, options: RequestOptions
) -> None:
    with zmq.Context() as context, context.socket(zmq.SocketType.DEALER) as odd:
        odd.setsockopt(zmq.SocketOption.LINGER, 0)
        odd.setsockopt(zmq.SocketOption.RCVTIMEO, 60_000)
        odd.connect(f"ipc://{attach}")
        with unharmed(client, front_end):
            odd.send(messages.encode(Hello(pid=os.getpid())))
            assert isinstance(messages.decode_from_engine(odd.recv()), messages.Facts)
            odd.send(messages.encode(Rows("bad", to_bytes(rows), options)))
            odd.send(messages.encode(Rows("good", to_bytes(VALID), RequestOptions())))
            found: dict[str, str] = {}
            while len(found) < 2:
                for body in odd.recv_multipart():
                    answer = messages.decode_from_engine(body)
                    if not isinstance(answer, messages.Knock):  # sent every second
                        assert isinstance(answer, messages.RowsAnswer)
                        found[answer.rid] = answer.result.status
        assert found == {"bad": "failed", "good": "ok"}


@pytest.mark.parametrize(
    "parts",
    [
        [b""],
        [b"\xc1" * 1000],
        [bytes(1 << 20)],
        [b"one", b"two", b"three"],
        [messages.encode(Hello(protocol=99))],
        [msgspec.msgpack.encode({"type": "Rows", "rid": 5})],
        [messages.encode(Beat())],
    ],
    ids=["empty", "noise", "zeros", "several", "stranger", "mistyped", "unknown"],
)
def test_what_is_no_message_of_a_front_end_is_refused(
    client: Client, front_end: FrontEnds, attach: Path, parts: list[bytes]
) -> None:
    with zmq.Context() as context, context.socket(zmq.SocketType.DEALER) as odd:
        odd.setsockopt(zmq.SocketOption.LINGER, 0)
        odd.setsockopt(zmq.SocketOption.RCVTIMEO, 60_000)
        odd.connect(f"ipc://{attach}")
        for _ in range(MANY):
            odd.send_multipart(parts)
        for _ in range(MANY):
            answer = messages.decode_from_engine(odd.recv())
            assert isinstance(answer, messages.Refusal | messages.Farewell)
    with connected(front_end.address) as stub:
        assert stub.Score(request_of(GOOD)).usage.path == pb.PATH_PACKED

"""A router over two real engines gives one engine's answers and errors, even if engines fail."""

from __future__ import annotations

import json
import os
import random
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import nan
from pathlib import Path

import grpc
import numpy as np
import pytest

from bench.fleet.faults.asks import Ask, End
from bench.fleet.faults.injuries import Injuries
from bench.fleet.faults.load import Load
from bench.fleet.faults.schedule import Fault, Kind
from bench.fleet.faults.wires import wires_to
from sglang_prefill_ext.attach import carrier
from sglang_prefill_ext.attach.messages import StockAnswer, StockError, StockScore
from sglang_prefill_ext.client import EmbedOverrides, Options, PrefillClient
from sglang_prefill_ext.grpc_frontend import prefill_pb2 as pb
from sglang_prefill_ext.grpc_frontend.prefill_pb2_grpc import PrefillStub
from sglang_prefill_ext.local_server import LocalServer
from sglang_prefill_ext.modelmaker import catalogue
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedRows, to_bytes
from sglang_prefill_ext.wire.read import Labels
from sglang_prefill_ext.wire.sampling import Sampling
from tests.integration.support.client import (
    OPT_OUT,
    Client,
    Json,
    random_ids,
    score_body,
    wait_until,
)
from tests.integration.support.fleets import Routers, client_at, fleet_of, two_engines
from tests.integration.support.grpc_frontends import connected, request_of, rows_of
from tests.integration.support.own_server import Serving
from tests.integration.support.parity import assert_same, assert_same_response
from tests.integration.support.processes import late_answer

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

FLAGS = (
    *("--enable-prefill-only", "--prefill-only-max-items=300"),
    "--prefill-only-max-queued-tokens=60000",
)
LARGE = score_body(1, 60, [80 + number % 50 for number in range(200)])
TEXTS: Json = {
    "query": "which one? ",
    "items": [f"naïve café number {number}" for number in range(150)],
    "label_token_ids": [5, 9],
}
FORMS = {
    "large": LARGE,
    "softmax": LARGE | {"apply_softmax": True, "temperature": 0.5},
    "item first": LARGE | {"item_first": True},
    "own labels": LARGE | {"label_token_ids": [[5, 9 + n % 7][: 1 + n % 2] for n in range(200)]},
    "texts": TEXTS,
    "small": score_body(2, 5, [3, 4]),
    "one": score_body(3, 20, [7]),
    "one text": TEXTS | {"items": "only one"},
}
WRONG = [
    b"",
    b"{",
    b"[]",
    b'{"query": [5], "items": [], "label_token_ids": [5]}',
    b'{"query": [5], "items": [[-7]], "label_token_ids": [5]}',
    b'{"query": [5], "items": [[7]], "label_token_ids": [99999999]}',
    b'{"query": [5], "items": [[99999999]], "label_token_ids": [5]}',
    b'{"query": [], "items": [[]], "label_token_ids": [5]}',
    b'{"query": "a", "items": [[7]], "label_token_ids": [5]}',
    b'{"query": "a", "items": ["\\ud800"], "label_token_ids": [5]}',
    b'{"query": [5], "items": [[7]], "label_token_ids": [5], "temperature": 0}',
    json.dumps({"query": [5], "items": [[7]] * 301, "label_token_ids": [5]}).encode(),
]
DOCUMENTS = [item.text for item in random.Random(3).sample(catalogue.items(), 40)]
RERANK: Json = {"query": "red wool blanket", "documents": DOCUMENTS}


@pytest.fixture(scope="module")
def engines(model_dir: Callable[[str], Path]) -> Iterator[tuple[Serving, Serving]]:
    with two_engines(model_dir("reranker"), "fleet-", *FLAGS) as pair:
        yield pair


@pytest.fixture(scope="module")
def fleet(engines: tuple[Serving, Serving], grpc_port: int) -> Iterator[Routers]:
    urls = [each.server.base_url for each in engines]
    # Small requests are divided as well, however busy the machine is.
    flags = ("--extra-work=10", "--processes=1", f"--grpc-port={grpc_port}")
    with fleet_of(urls, "fleet", *flags) as running:
        running.wait_up(*urls)
        yield running


@pytest.fixture
def stub(fleet: Routers, grpc_port: int) -> Iterator[PrefillStub]:
    with connected(f"127.0.0.1:{grpc_port}") as stub:
        yield stub


@pytest.mark.parametrize("stock", [False, True], ids=["packed", "by an engine"])
@pytest.mark.parametrize("name", ["large", "softmax", "item first", "own labels", "texts", "small"])
def test_scores_over_grpc_are_those_of_one_engine(
    fleet: Routers, stub: PrefillStub, one: Client, name: str, stock: bool
) -> None:
    before = Counter(fleet.counts())
    request = request_of(FORMS[name])
    request.options.stock = stock
    answer = stub.Score(request, timeout=60)
    wanted = one.score(FORMS[name])
    assert_same(rows_of(answer.scores, answer.counts, "<f8"), wanted["scores"])
    assert answer.usage.prompt_tokens == wanted["usage"]["prompt_tokens"]
    assert answer.usage.path == (pb.PATH_ENGINE if stock else pb.PATH_PACKED)
    assert (Counter(fleet.counts())["requests"] == before["requests"]) == stock


@pytest.mark.parametrize("stock", [False, True], ids=["packed", "by an engine"])
def test_embeddings_in_place_of_tokens_over_grpc(
    fleet: Routers, grpc_port: int, engines: tuple[Serving, Serving], stock: bool
) -> None:
    asked = {"query": [5, 7, 6], "items": [[7, 9], [8], [7, 7, 9]] * 40, "label_token_ids": [5, 9]}
    embeds = np.random.default_rng(3).standard_normal((4, 128)).astype(np.float32)
    overrides = EmbedOverrides(7, query=embeds[:1], items=[embeds[1:2], None, embeds[2:]] * 40)
    with (
        PrefillClient(engines[0].server.base_url) as http,
        PrefillClient(f"grpc://127.0.0.1:{grpc_port}") as over_grpc,
    ):
        wanted = http.score(**asked, embed_overrides=overrides)
        found = over_grpc.score(**asked, embed_overrides=overrides, options=Options(stock=stock))
    assert_same(found.scores.tolist(), wanted.scores.tolist())


def test_streams_over_grpc_and_wrong_calls(stub: PrefillStub, one: Client) -> None:
    first = request_of(LARGE)
    more = pb.ScoreRequest(item_ids=first.item_ids)
    answers = list(stub.ScoreStream(iter([first, more]), timeout=60))
    wanted = one.score(LARGE)["scores"]
    for answer in answers:
        assert_same(rows_of(answer.scores, answer.counts, "<f8"), wanted)
    assert len(answers) == 2
    for stock in (False, True):
        wrong = request_of(FORMS["small"] | {"label_token_ids": [99_999_999]})
        wrong.options.stock = stock
        with pytest.raises(grpc.RpcError, match="99999999") as refused:
            stub.Score(wrong, timeout=60)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("body", FORMS.values(), ids=FORMS)
def test_scores_are_those_of_one_engine(fleet: Routers, one: Client, body: Json) -> None:
    assert_same(fleet.client.score(body), one.score(body))


def test_large_requests_are_divided_and_none_needs_a_second_try(
    fleet: Routers, engines: tuple[Serving, Serving]
) -> None:
    def divided_in_two() -> bool:
        """Whether the request was divided in two; on a busy machine an engine may seem stopped."""
        fleet.wait_up(*(each.server.base_url for each in engines))
        before = Counter(fleet.counts())
        fleet.client.score(score_body(11, 60, [100] * 200))
        moved = Counter(fleet.counts()) - before
        assert moved["requests"] == 1
        again = moved["asked_twice"] + moved["retried"]
        return moved["divided"] == 1 and moved["parts"] == 2 and not again

    wait_until(divided_in_two)


@pytest.mark.parametrize("fields", [{}, {"top_n": 3, "return_documents": False}], ids=str)
def test_documents_are_ranked_as_by_one_engine(fleet: Routers, one: Client, fields: Json) -> None:
    found, wanted = (each.post("/v1/rerank", RERANK | fields) for each in (fleet.client, one))
    assert found.status_code == wanted.status_code == 200, (found.text, wanted.text)
    assert_same(found.json(), wanted.json())
    assert [list(each) for each in found.json()] == [list(each) for each in wanted.json()]


@pytest.mark.parametrize("content", WRONG, ids=range(len(WRONG)))
def test_wrong_bodies_get_an_engines_own_answer(
    fleet: Routers, one: Client, content: bytes
) -> None:
    headers = {"content-type": "application/json"}
    for path in ("/v1/score", "/v1/rerank"):
        found, wanted = (
            each.http.post(path, content=content, headers=headers) for each in (fleet.client, one)
        )
        assert_same_response(found, wanted)


def test_wrong_headers_get_an_engines_own_answer(fleet: Routers, one: Client) -> None:
    headers = {"x-prefill-only-timeout-ms": "soon"}
    found, wanted = (
        each.http.post("/v1/score", json=LARGE, headers=headers) for each in (fleet.client, one)
    )
    assert found.status_code == wanted.status_code == 400
    assert found.content == wanted.content


def test_other_routes_are_handed_on_whole(fleet: Routers, one: Client) -> None:
    ids = random_ids(random.Random(4), 12)
    assert fleet.client.generate(ids, 5) == one.generate(ids, 5)
    assert fleet.client.http.get("/v1/models").json()["data"][0]["id"]
    assert fleet.client.http.get("/nothing").status_code == 404
    fleet.client.score(LARGE)
    metrics = ""

    def shows_all() -> bool:  # once a second
        nonlocal metrics
        metrics = fleet.client.http.get("/metrics").text
        answered = re.findall(r"\nsglang:prefill_only_fleet_request_seconds_count (.+)", metrics)
        both = metrics.count("sglang:prefill_only_fleet_replica_up{") == 2
        return both and sum(map(float, answered)) > 0

    wait_until(shows_all)
    assert 'gc_pause_seconds_count{role="fleet_router",server="fleet"' in metrics
    stock = fleet.client.http.post("/v1/score", json=TEXTS, headers=OPT_OUT)
    assert_same(stock.json(), one.score(TEXTS))
    body = {"text": "a b", "stream": True, "sampling_params": {"max_new_tokens": 4}}
    with fleet.client.http.stream("POST", "/generate", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert list(answer.iter_lines())[-2:] == ["data: [DONE]", ""]


def test_a_deadline_that_cannot_be_met_is_an_engines_504(
    fleet: Routers, engines: tuple[Serving, Serving], one: Client
) -> None:
    for client in (fleet.client, one):
        answer = late_answer([each.server for each in engines], client, "/v1/score", LARGE)
        assert answer.status_code == 504, answer.text
        assert {"object": "error", "type": "504", "code": 504}.items() <= answer.json().items()


def test_a_full_fleet_says_when_to_come_again(
    fleet: Routers, engines: tuple[Serving, Serving]
) -> None:
    body = score_body(5, 10, [250] * 100)
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda _: fleet.client.post("/v1/score", body), range(40)))
    full = [each for each in answers if each.status_code == 429]
    assert full
    assert all(int(each.headers["retry-after"]) >= 1 for each in full)
    assert full[0].json().keys() == {"object", "message", "type", "param", "code"}
    good = [each.json() for each in answers if each.status_code == 200]
    assert len(good) + len(full) == len(answers)
    for answer in good:
        assert_same(answer, good[0])
    fleet.wait_up(*(each.server.base_url for each in engines))


def test_rows_come_from_an_engines_own_route(one: Client) -> None:
    rows = PackedRows(int_array([5, 6, 7]), 1, int_array([1, 1]), Labels(int_array([5, 9])))
    kind = {"content-type": carrier.MSGPACK}
    answer = one.http.post(carrier.ROWS_PATH, content=to_bytes(rows))
    found = carrier.answer_from(answer.content).result.row_values()
    body = {"query": [5], "items": [[6], [7]], "label_token_ids": [5, 9]}
    wanted = one.score(body | {"return_token_logprobs": True})["token_logprobs"]
    assert np.abs(found - np.ravel(wanted)).max() < 1e-5
    torn = to_bytes(rows)[:-3]
    contradicting = carrier.encode([b""] * 8)
    unknown = to_bytes(replace(rows, tokens=rows.tokens + (1 << 30)))
    large = to_bytes(replace(rows, read=Labels(num_best=1 << 28)))
    odd = Sampling.one(temperature=0.0, top_p=nan, min_p=0.0, top_k=50, seed=0, biases={})
    drawn = to_bytes(replace(rows, read=Labels(num_best=1, sampling=Sampling.joined([odd] * 2))))
    for content in (b"", torn, contradicting, unknown, large, drawn):
        answer = one.http.post(carrier.ROWS_PATH, content=content, headers=kind)
        assert carrier.answer_from(answer.content).result.status == "failed"


def test_calls_of_the_engine_itself_come_from_its_own_route(one: Client) -> None:
    arguments = {"query": [5], "items": [[6], [7]], "label_token_ids": [5, 9]}
    call = StockScore("a call", arguments, OPT_OUT)
    answer = one.http.post(carrier.CALLS_PATH, content=carrier.encode(call))
    found = carrier.call_answer_from(answer.content)
    assert isinstance(found, StockAnswer)
    assert_same(found.rows, one.score(arguments)["scores"])
    for content in (b"", b"torn", carrier.encode(["a"]), b"\x91" * 100_000):
        answer = one.http.post(carrier.CALLS_PATH, content=content)
        assert answer.status_code == 400, answer.text
        assert answer.json()["type"] == "BadRequestError"
    for wrong in (arguments | {"odd": 1}, arguments | {"items": [[-7]]}, {}):
        content = carrier.encode(StockScore("a call", wrong, {}))
        answer = one.http.post(carrier.CALLS_PATH, content=content)
        assert isinstance(carrier.call_answer_from(answer.content), StockError), wrong
    assert one.score(arguments)["scores"]


def test_an_offer_tells_the_longest_context(one: Client) -> None:
    offer = carrier.state_from(one.http.get(carrier.FACTS_PATH).content).offer
    (model,) = one.http.get("/v1/models").json()["data"]
    assert offer is not None
    assert offer.settings["--context-length"] == str(model["max_model_len"])


def test_an_engine_that_differs_is_refused_and_the_difference_named(
    engines: tuple[Serving, Serving], server: LocalServer
) -> None:
    urls = [*(each.server.base_url for each in engines), server.base_url]
    with fleet_of(urls, "fleet-mixed") as mixed:
        wait_until(lambda: mixed.replicas()[urls[2]] == "refused")
        mixed.wait_up(*urls[:2])
        why = next(e["why"] for e in mixed.client.status()["replicas"] if e["url"] == urls[2])
        assert "--model-path" in why
        assert "micro" in why
        assert mixed.client.score(LARGE)["scores"]


def test_no_engine_at_all_is_503_at_once(engines: tuple[Serving, Serving]) -> None:
    with fleet_of(["http://127.0.0.1:9"], "fleet-none") as none:
        for path in ("/v1/score", "/generate"):
            answer = none.client.post(path, LARGE)
            assert answer.status_code == 503, answer.text
            assert "No engine" in answer.json()["message"]
        assert none.client.http.get("/health").status_code == 503


def test_engines_may_die_stand_still_and_come_back_under_load(
    fleet: Routers, engines: tuple[Serving, Serving]
) -> None:
    first, second = engines
    urls = [each.server.base_url for each in engines]
    asks = asks_of(first)
    fleet.wait_up(*urls)
    memory = first.client.memory()
    with Load(fleet.processes.port, asks, 4) as load:
        load.wait_more(20)
        with second.server.paused():
            load.wait_more(40)
            fleet.wait_up(urls[0])
        fleet.wait_up(*urls)
        load.wait_more(20)
        os.killpg(second.server.pids[0], signal.SIGKILL)
        load.wait_more(40)
        fleet.wait_up(urls[0])
    # Clients that leave the machine to the engine that starts.
    with Load(fleet.processes.port, asks, 4, pause_s=0.1) as calm:
        second.server.stop()
        second.server.start()
        second.server.wait_ready()
        fleet.wait_up(*urls)
        calm.wait_more(20)
    for each in (load, calm):
        assert each.ends() == {End.RIGHT: len(each.outcomes)}, each.unwanted()
    counts = Counter(fleet.counts())
    assert counts["asked_twice"] + counts["retried"] > 0
    first.client.assert_memory_returns_to(memory)
    wait_until(lambda: not fleet.client.status()["in_flight"])


FAULTS = (
    *(Fault(Kind.ENGINE_CUT, target=0), Fault(Kind.SCHEDULER_STOPPED, 0.2, 1.0, 1)),
    *(Fault(Kind.ROUTER_KILLED), Fault(Kind.ENGINE_SILENT, 0.1, 1.0), Fault(Kind.CLIENTS_CUT)),
    *(Fault(Kind.ROUTER_TERMINATED, 0.5), Fault(Kind.ROUTER_STOPPED, 0.2, 0.5, 1)),
)


def test_routers_and_connections_may_fail_under_load(engines: tuple[Serving, Serving]) -> None:
    """A few of the faults of ``python -m bench.fleet.faults``."""
    memory = [each.client.memory() for each in engines]
    with wires_to([each.server.port for each in engines]) as wires:
        urls = [f"http://127.0.0.1:{each.port}" for each in wires]
        with fleet_of(urls, "fleet-faults", "--extra-work=10", "--processes=2") as two:
            wait_until(lambda: len(two.processes.listening()) == 2)
            injuries = Injuries([each.server for each in engines], wires, two.processes)
            port, died = two.processes.port, injuries.router_died
            with Load(port, asks_of(engines[0]), 4, router_died=died) as load:
                load.wait_more(20)
                injuries.perform(FAULTS, load)
                load.wait_more(40)
    assert injuries.done == Counter(each.kind for each in FAULTS)
    assert not load.unwanted()
    assert load.ends()[End.RIGHT] > 20
    for each, before in zip(engines, memory, strict=True):
        each.client.assert_memory_returns_to(before)


def asks_of(engine: Serving) -> list[Ask]:
    bodies = [score_body(20 + n, 40, [30 + n] * 60) for n in range(4)]
    return [Ask.of(engine.server.port, "/v1/score", body) for body in bodies]


def test_routers_that_share_a_port_all_serve(engines: tuple[Serving, Serving]) -> None:
    urls = [each.server.base_url for each in engines]
    with fleet_of(urls, "fleet-two", "--processes=2") as two:
        pids = set()

        def both_have_answered() -> bool:
            with client_at(two.client.http.base_url) as another:  # a connection of its own
                pids.add(another.status()["pid"])
                assert_same(another.score(TEXTS), engines[0].client.score(TEXTS))
            return len(pids) == 2

        wait_until(both_have_answered)


def test_an_engine_that_shuts_down_gets_no_more_work(
    fleet: Routers, engines: tuple[Serving, Serving]
) -> None:
    """Otherwise it would not end under load, as SGLang waits until it has none.

    This is the last test of the module: its second engine stays ended.
    """
    (first, second), urls = engines, [each.server.base_url for each in engines]
    fleet.wait_up(*urls)
    assert second.server.pid is not None
    with Load(fleet.processes.port, asks_of(first), 4) as load:
        load.wait_more(20)
        os.kill(second.server.pid, signal.SIGTERM)
        wait_until(lambda: fleet.replicas()[urls[1]] == "draining")
        wait_until(lambda: not second.server.running)
        load.wait_more(20)
    assert load.ends() == {End.RIGHT: len(load.outcomes)}, load.unwanted()

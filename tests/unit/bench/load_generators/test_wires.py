from __future__ import annotations

import json

import numpy as np

from bench.load_generators.wires import Wire, answer_body, grpc_messages, http_bodies
from bench.workloads import LABEL_IDS, Shape, draw_requests
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.frontend.score.score_body import stock_score_body
from sglang_prefill_ext.grpc_frontend import prefill_pb2 as pb
from sglang_prefill_ext.grpc_frontend.questions import score_call, stock_arguments

REQUESTS = draw_requests(Shape.parse("5+2x3"), 1000, 4, seed=1)


def as_text(ids: object) -> str:
    return f"<{ids}>"


def test_every_way_asks_the_same() -> None:
    lists = [json.loads(each) for each in http_bodies(Wire.IDS, REQUESTS, as_text)]
    arrays = [
        json.loads(stock_score_body(each, PrefillOnlyConfig())[0])
        for each in http_bodies(Wire.ARRAYS, REQUESTS, as_text)
    ]
    called = [
        stock_arguments(score_call(pb.ScoreRequest.FromString(each)))
        for each in grpc_messages(REQUESTS)
    ]
    for wanted, *found in zip(lists, arrays, called, strict=True):
        assert wanted["label_token_ids"] == list(LABEL_IDS)
        assert wanted["apply_softmax"] is True
        for one in found:
            assert {name: one[name] for name in wanted} == wanted
    (text, *_) = http_bodies(Wire.TEXT, REQUESTS, as_text)
    assert json.loads(text)["query"] == as_text(REQUESTS[0].query)


def test_stock_gets_the_best_that_it_knows() -> None:
    assert [wire.of_stock for wire in Wire] == [Wire.IDS, Wire.IDS, Wire.TEXT, Wire.IDS]


def test_an_answer_over_grpc_reads_as_one_over_http() -> None:
    scores, counts = np.array([0.25, 0.75, 1.0], "<f8"), np.array([2, 1], "<i4")
    answer = pb.ScoreResponse(scores=scores.tobytes(), counts=counts.tobytes())
    assert json.loads(answer_body(answer)) == {"scores": [[0.25, 0.75], [1.0]]}

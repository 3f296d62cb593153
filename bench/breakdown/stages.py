"""Time each host stage of a packed request by itself, in a loop."""

from __future__ import annotations

import timeit
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httptools
import numpy as np
import torch
import zmq
from starlette.responses import Response

from bench.http_client import post_bytes
from sglang_prefill_ext.config import Order, PrefillOnlyConfig
from sglang_prefill_ext.forward.upload import upload
from sglang_prefill_ext.frontend.answers import Scored, flat_scores, label_rows
from sglang_prefill_ext.frontend.pack import pack_token_ids
from sglang_prefill_ext.frontend.score.score_body import ScoreBody, answer_body
from sglang_prefill_ext.frontend.score.score_call import pack_labels
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.planner import ForwardPlan
from sglang_prefill_ext.scheduling.policy import policy_of
from sglang_prefill_ext.scheduling.runtime import PackedRuntime
from sglang_prefill_ext.wire.arrays import Float32Array
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows, rows_from_bytes, to_bytes
from sglang_prefill_ext.wire.status import Status

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sglang.srt.entrypoints.openai.protocol import ScoringRequest, ScoringResponse, UsageInfo
    from sglang.srt.managers.io_struct import sock_recv, sock_send

    from sglang_prefill_ext.border.messages import PackedRowsReq, PackedRowsResults

_REPEATS = 7
_PATH = "/v1/score"


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a request, and its time in µs.

    The time is the least of several means, so that other load on the machine counts little.
    """

    name: str
    us: float


def timed(name: str, work: Callable[[], object]) -> Stage:
    """Time `work` by repeating it."""
    timer = timeit.Timer(work)
    count, _ = timer.autorange()
    count = max(1, count // 4)
    return Stage(name, min(timer.repeat(_REPEATS, count)) / count * 1e6)


def packed_stages(body: bytes, vocabulary: int) -> Iterator[Stage]:
    """Time the extension's stages, in the order in which a request passes them; not the forward.

    Args:
        body: of ``POST /v1/score``, with token ids as lists or as arrays.
    """
    yield timed("HTTP request parsed", _parser(body))
    yield timed("body read", lambda: ScoreBody.of(body).call(None))
    read = ScoreBody.of(body)
    call, model = read.call(None), read.model
    assert call is not None, "a plain body"
    labels = pack_labels(call.label_token_ids, call.num_items, vocabulary)
    assert labels is not None, "plain labels"
    yield timed("labels checked", lambda: pack_labels(call.label_token_ids, call.num_items, 10**6))
    args = (call.query, call.items, False, labels, vocabulary)
    yield timed("rows packed", lambda: pack_token_ids(*args))
    rows = pack_token_ids(*args)

    def message() -> Any:
        return PackedRowsReq(rid="packed-1", row_bytes=to_bytes(rows))

    yield timed("message made", message)
    request = message()
    yield from _sent("request", request)
    yield timed("message read", lambda: rows_from_bytes(request.row_bytes, (0, 0)))
    yield from _scheduled(rows)
    values = np.linspace(-9, -1, rows.num_values, dtype=np.float32)
    result = PackedResult(Status.OK, values=values.tobytes())
    yield from _sent("result", PackedRowsResults(results={"packed-1": result}))
    kind: dict[str, Any] = {"apply_softmax": True, "temperature": 1.0}

    def scores() -> list[list[float]]:
        return label_rows(flat_scores(values, rows.read, **kind), rows.read)

    yield timed("scores", scores)
    scored = Scored(scores(), None, rows, result)
    yield timed("answer written", lambda: answer_body(scored, model=model))
    answer = answer_body(scored, model=model)
    yield timed("HTTP answer made", lambda: Response(answer, media_type="application/json"))


def stock_stages(body: bytes, items: int) -> Iterator[Stage]:
    """Time those stages of SGLang that can run by themselves: what FastAPI does with a request."""
    yield timed("HTTP request parsed", _parser(body))
    yield timed("body read", lambda: ScoringRequest.model_validate_json(body))
    scores = [[0.25, 0.75]] * items
    usage = UsageInfo(prompt_tokens=1, total_tokens=1)

    def answer() -> Response:
        made = ScoringResponse(scores=scores, model="default", usage=usage)
        return Response(made.model_dump_json(), media_type="application/json")

    yield timed("answer written", answer)


def _parser(body: bytes) -> Callable[[], object]:
    class Nothing:
        """Ignores all events of the parser."""

    parser, request = httptools.HttpRequestParser(Nothing()), post_bytes(_PATH, body)
    return lambda: parser.feed_data(request)


def _sent(what: str, message: Any) -> Iterator[Stage]:
    """Time encoding a message, sending it through a ZMQ socket, and decoding it, as SGLang does."""
    with zmq.Context() as context:
        here, there = context.socket(zmq.SocketType.PUSH), context.socket(zmq.SocketType.PULL)
        with here, there:
            there.bind("ipc://*")
            here.connect(there.getsockopt_string(zmq.SocketOption.LAST_ENDPOINT))

            def across() -> object:
                sock_send(here, message)
                return sock_recv(there)

            yield timed(f"{what} encoded, sent, received, decoded", across)


def _scheduled(rows: PackedRows) -> Iterator[Stage]:
    """Time the runtime's work for a request without a forward, and the upload of its plan."""
    executor = _Nothing(np.zeros(rows.num_values, dtype=np.float32))
    policy = policy_of(PrefillOnlyConfig(order=Order.SRPT), ForwardBudget(10**6), 1000)
    runtime = PackedRuntime(executor, lambda _ended: None, policy)

    def serve() -> None:
        runtime.submit("packed-1", rows, None)
        runtime.step()

    yield timed("queued, planned, answered", serve)
    plan = executor.plan
    assert plan is not None, "one forward was launched"

    def laid_out() -> object:
        layout = plan.layout
        arrays = [plan.token_ids.astype(np.int64), layout.positions(), layout.last_layer_queries()]
        return upload(arrays, torch.device("cpu"))

    yield timed("laid out, uploaded", laid_out)


class _Nothing:
    """An executor, and its forward: computes nothing and returns the same values at once."""

    asynchronous = False
    causal = True

    def __init__(self, values: Float32Array) -> None:
        self._values = values
        self.plan: ForwardPlan | None = None

    def launch(self, plan: ForwardPlan) -> _Nothing:
        self.plan = plan
        return self

    def done(self) -> bool:
        return True

    def wait(self) -> Float32Array:
        return self._values

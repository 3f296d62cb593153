"""Translates a client's requests into gRPC calls, and their answers and errors into HTTP's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from numpy.typing import NDArray

from sglang_prefill_ext.client.answers import GIVE_TIME, TRY_LATER, Scores, error_for
from sglang_prefill_ext.client.arrays import Ids
from sglang_prefill_ext.client.options import Options
from sglang_prefill_ext.client.requests import Request
from sglang_prefill_ext.errors import PrefillExtError, RequestError
from sglang_prefill_ext.grpc_frontend import prefill_pb2 as pb

_DETAILS = "grpc-status-details-bin"
_START = "Start front ends there, or correct the address."
_TRUST = (
    "Name the PEM file of its authority in GRPC_DEFAULT_SSL_ROOTS_FILE_PATH, or give it in "
    "credentials."
)
_HTTP_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.UNIMPLEMENTED: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 413,  # or 429, see `error_of`
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.ABORTED: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
"""HTTP status for each code; 500 for all other codes."""

_FULL = "Concurrent RPC limit exceeded!"
"""gRPC's own message for a call beyond the server's `--max-calls`."""


def grpc_call(
    request: Request[Any], options: Options
) -> tuple[str, Any, Callable[[Any, int], Any]]:
    """Return the gRPC call that corresponds to an HTTP request.

    Returns:
        The method of `prefill_ext.v1.Prefill`, its message, and what turns the answer and the
        number of items into what was asked for.

    Raises:
        RequestError: a number has more bits than its field.
    """
    method, message_of, read = _METHODS[request.path]
    try:
        message = message_of(request.body)
        message.options.CopyFrom(
            pb.Options(
                priority=options.priority, keep_prefix=options.keep_prefix, stock=options.stock
            )
        )
    except ValueError as error:
        raise RequestError(
            f"{request.asked}: gRPC cannot carry it ({error}). Send numbers of 32 bits."
        ) from error
    return method, message, read


def error_of(asked: str, error: Any) -> PrefillExtError:
    """Return the error for a call that failed with a `grpc.RpcError`."""
    code, said, wait_s = error.code(), str(error.details()), _retry_after_s(error)
    status = _HTTP_STATUS.get(code, 500)
    if status == 413 and (wait_s is not None or said == _FULL):
        status = 429
    remedy = {429: TRY_LATER, 504: GIVE_TIME}.get(status, "")
    if code is grpc.StatusCode.UNAVAILABLE and wait_s is None:  # no front end says so
        remedy = _TRUST if "CERTIFICATE_VERIFY_FAILED" in said else _START
    return error_for(status, f"{asked}: {code.name}", said, wait_s or 0.0, remedy)


def _retry_after_s(error: Any) -> float | None:
    """Seconds after which the server wants a repeat; None if it does not say, or illegibly."""
    sent = (value for name, value in error.trailing_metadata() or () if name == _DETAILS)
    wait = RetryInfo()
    try:
        if any(detail.Unpack(wait) for detail in Status.FromString(next(sent, b"")).details):
            return max(0.0, float(wait.retry_delay.ToMilliseconds()) / 1e3)
    except DecodeError:
        pass
    return None


_OF_THE_SAME_NAME = ("apply_softmax", "temperature", "item_first", "return_token_logprobs")


def _score_message(body: dict[str, Any]) -> pb.ScoreRequest:
    message = pb.ScoreRequest(**{name: body[name] for name in _OF_THE_SAME_NAME})
    query, items, labels = body["query"], body["items"], body["label_token_ids"]
    if isinstance(query, str):
        message.query_text = query
    else:
        message.query_ids = _int32(query)
    if isinstance(items[0], str):
        message.item_texts.texts.extend(items)
    else:
        message.item_ids.CopyFrom(_int32_rows(items))
    if labels:
        own = isinstance(labels[0], list)
        message.labels.CopyFrom(_int32_rows(labels if own else [labels]))
    if "embed_override_token_id" in body:
        message.embed_overrides.CopyFrom(overrides_message(body))
    return message


def overrides_message(body: dict[str, Any]) -> pb.EmbedOverrides:
    """Return the message for the fields of `EmbedOverrides.fields`."""
    items = body.get("item_embed_overrides", ())
    of_items = [each for each in items if each is not None]
    of_query = [body["query_embed_overrides"]] if "query_embed_overrides" in body else []
    given = [*of_query, *of_items]
    half = all(each.dtype == np.float16 for each in given)
    dtype = "<f2" if half else "<f4"
    return pb.EmbedOverrides(
        token_id=body["embed_override_token_id"],
        dtype="float16" if half else "float32",
        width=given[0].shape[1] if given else 0,
        query=b"".join(each.astype(dtype).tobytes() for each in of_query),
        items=b"".join(each.astype(dtype).tobytes() for each in of_items),
        item_counts=_int32([0 if each is None else len(each) for each in items]),
    )


def _embed_message(body: dict[str, Any]) -> pb.EmbedRequest:
    return pb.EmbedRequest(
        prompts=_prompts(body["input"]),
        dimensions=body.get("dimensions", 0),
        adapter=body.get("lora_path", ""),
    )


def _classify_message(body: dict[str, Any]) -> pb.ClassifyRequest:
    prompts = body["text"] if "text" in body else body["input_ids"]
    return pb.ClassifyRequest(prompts=_prompts(prompts), adapter=body.get("lora_path", ""))


def _prompts(prompts: list[Any]) -> pb.Prompts:
    if isinstance(prompts[0], str):
        return pb.Prompts(texts=pb.Texts(texts=prompts))
    return pb.Prompts(ids=_int32_rows(prompts))


def _int32(values: Ids | Sequence[int]) -> bytes:
    return np.array(values, dtype="<i4").tobytes()


def _int32_rows(rows: Sequence[Ids | Sequence[int]]) -> pb.Int32Rows:
    flat = np.concatenate([np.array(row, dtype="<i4") for row in rows])
    return pb.Int32Rows(values=flat.tobytes(), counts=_int32([len(row) for row in rows]))


def _read_scores(answer: pb.ScoreResponse, items: int) -> Scores:
    logprobs = np.frombuffer(answer.token_logprobs, "<f4").astype(np.float64)
    return Scores(
        scores=np.frombuffer(answer.scores, "<f8").reshape(items, -1),
        token_logprobs=logprobs.reshape(items, -1) if len(logprobs) else None,
        prompt_tokens=answer.usage.prompt_tokens,
    )


def _rows(numbers: bytes, prompts: int) -> NDArray[np.float32]:
    return np.frombuffer(numbers, "<f4").reshape(prompts, -1)


_METHODS: dict[str, tuple[str, Callable[[dict[str, Any]], Any], Callable[[Any, int], Any]]] = {
    "/v1/score": ("Score", _score_message, _read_scores),
    "/v1/embeddings": ("Embed", _embed_message, lambda answer, n: _rows(answer.vectors, n)),
    "/classify": ("Classify", _classify_message, lambda answer, n: _rows(answer.values, n)),
}
"""For each path: the method, what makes its message, and what reads its answer."""

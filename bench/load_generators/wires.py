"""Wires: the protocols and forms in which the same scoring requests are sent to a server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import grpc
import numpy as np

from bench.http_client import LoadError
from bench.workloads import LABEL_IDS, ScoreRequest, score_body
from sglang_prefill_ext.client.grpc_calls import grpc_call
from sglang_prefill_ext.client.options import DEFAULT_OPTIONS
from sglang_prefill_ext.client.requests import Request, plan_score
from sglang_prefill_ext.grpc_frontend import prefill_pb2 as pb

ENDPOINT = "/v1/score"
GRPC_METHOD = "/prefill_ext.v1.Prefill/Score"


class Wire(StrEnum):
    """Protocol and form of a request; GRPC sends packed arrays."""

    IDS = "ids"
    ARRAYS = "arrays"
    TEXT = "text"
    GRPC = "grpc"

    @property
    def of_stock(self) -> Wire:
        """The wire of the stock server to compare with: the best one that stock supports."""
        return Wire.TEXT if self is Wire.TEXT else Wire.IDS


def http_bodies(
    wire: Wire, requests: Sequence[ScoreRequest], decode: Callable[[Sequence[int]], str]
) -> list[bytes]:
    """Bodies of ``POST /v1/score``.

    Args:
        decode: turns token ids into text.
    """
    if wire is Wire.ARRAYS:
        return [_planned(each).content(arrays=True) for each in requests]
    return [score_body(each, decode if wire is Wire.TEXT else None) for each in requests]


def grpc_messages(requests: Sequence[ScoreRequest]) -> list[bytes]:
    """Messages of `prefill_ext.v1.Prefill.Score`."""
    calls = (grpc_call(_planned(each), DEFAULT_OPTIONS) for each in requests)
    return [message.SerializeToString() for _, message, _ in calls]


def grpc_answers(port: int, messages: Sequence[bytes]) -> Mapping[int, bytes]:
    """Send every message; return the answers by their numbers, in the form of HTTP bodies.

    Raises:
        LoadError: a call failed.
    """
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        score = channel.unary_unary(GRPC_METHOD, response_deserializer=pb.ScoreResponse.FromString)
        try:
            return {number: answer_body(score(each)) for number, each in enumerate(messages)}
        except grpc.RpcError as error:
            raise LoadError(f"gRPC: {error}") from error


def answer_body(answer: pb.ScoreResponse) -> bytes:
    """Convert a gRPC answer to a ``/v1/score`` body with the fields that are compared."""
    counts = np.frombuffer(answer.counts, "<i4")
    rows = np.split(np.frombuffer(answer.scores, "<f8"), np.cumsum(counts)[:-1])
    return json.dumps({"scores": [row.tolist() for row in rows]}).encode()


def _planned(request: ScoreRequest) -> Request[Any]:
    """The request of the Python client."""
    (planned,) = plan_score(
        request.query,
        request.items,
        list(LABEL_IDS),
        max_items=len(request.items),
        apply_softmax=True,
        item_first=False,
        temperature=1.0,
        return_token_logprobs=False,
    ).requests
    return planned

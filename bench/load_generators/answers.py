"""Get one answer to every request, for the gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import grpc

from bench.http_client import LoadError, post_bytes
from bench.load import Window, closed_loop, run_loop
from bench.load_generators.wires import ENDPOINT, GRPC_METHOD, answer_body
from sglang_prefill_ext.grpc_frontend import prefill_pb2 as pb

_CLIENTS = 4


def http_answers(port: int, bodies: Sequence[bytes]) -> Mapping[int, bytes]:
    """Post every body; return the answers by the numbers of the bodies.

    Raises:
        LoadError: one of them was not 200.
    """
    pool = [post_bytes(ENDPOINT, body) for body in bodies]
    window = Window(seconds=0.0, min_requests=2 * len(pool))
    return run_loop(closed_loop(port, pool, _CLIENTS, window)).answers


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

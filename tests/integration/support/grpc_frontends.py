"""Starts gRPC front ends of a running engine as a user would, and makes their requests."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bench.server import running_command
from sglang_prefill_ext.grpc_frontend import prefill_pb2 as pb
from sglang_prefill_ext.grpc_frontend.prefill_pb2_grpc import PrefillStub
from sglang_prefill_ext.process.ports import free_port
from tests.integration.support.client import Json, wait_until
from tests.integration.support.own_server import LOGS
from tests.unit.grpc_frontend.calls import int32, int32_rows

SERVICE = "prefill_ext.v1.Prefill"


class FrontEnds(NamedTuple):
    process: subprocess.Popen[bytes]
    address: str
    log: Path


@contextmanager
def front_ends(attach: Path, name: str, *flags: str) -> Iterator[FrontEnds]:
    """Run ``sglang-prefill serve-grpc``; the log is ``.cache/logs/<name>.log``."""
    port, log = free_port(), LOGS / f"{name}.log"
    where = (f"--attach={attach}", f"--port={port}")
    with running_command("serve-grpc", *where, *flags, log=log) as process:
        yield FrontEnds(process, f"localhost:{port}", log)


def health(channel: grpc.Channel, service: str = SERVICE) -> str:
    """The health service's answer; NOTHING if there is none."""
    stub = health_pb2_grpc.HealthStub(channel)
    try:
        reply = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
    except grpc.RpcError:
        return "NOTHING"
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))


@contextmanager
def connected(address: str, credentials: Any = None) -> Iterator[PrefillStub]:
    """A stub on a connection of its own, once the front ends serve."""
    options = (("grpc.use_local_subchannel_pool", 1),)
    if credentials is None:
        channel = grpc.insecure_channel(address, options)
    else:
        channel = grpc.secure_channel(address, credentials, options)
    with channel:
        wait_until(lambda: health(channel) == "SERVING")
        yield PrefillStub(channel)  # type: ignore[no-untyped-call]


def request_of(body: Json, **fields: Any) -> pb.ScoreRequest:
    """Translate a body of /v1/score into a gRPC request."""
    body = body | fields
    request = pb.ScoreRequest(
        apply_softmax=body.get("apply_softmax", False),
        temperature=body.get("temperature"),
        item_first=body.get("item_first", False),
        return_token_logprobs=body.get("return_token_logprobs", False),
    )
    labels = body["label_token_ids"]
    request.labels.CopyFrom(int32_rows(labels if isinstance(labels[0], list) else [labels]))
    if isinstance(body["items"][0], str):
        request.query_text = body["query"]
        request.item_texts.texts.extend(body["items"])
    else:
        request.query_ids = int32(body["query"])
        request.item_ids.CopyFrom(int32_rows(body["items"]))
    return request


def rows_of(data: bytes, counts: bytes, dtype: str) -> list[list[float]]:
    """The numbers of an answer, one list an item."""
    ends = np.cumsum(np.frombuffer(counts, "<i4"))
    return [row.tolist() for row in np.split(np.frombuffer(data, dtype), ends[:-1])]

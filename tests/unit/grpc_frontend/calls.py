"""Requests, and a front end in this process with a stub for its engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import numpy as np

from sglang_prefill_ext.attach.broker import Broker
from sglang_prefill_ext.attach.connection import EngineConnection
from sglang_prefill_ext.grpc_frontend import prefill_pb2 as pb
from sglang_prefill_ext.grpc_frontend import prefill_pb2_grpc
from sglang_prefill_ext.grpc_frontend.service import PrefillService
from sglang_prefill_ext.grpc_frontend.transport import BearerAuth
from sglang_prefill_ext.metrics import FrontendMetrics
from tests.unit.attach.engines import StubCollector, StubEngine


def int32(values: Sequence[int]) -> bytes:
    return np.array(values, dtype="<i4").tobytes()


def int32_rows(rows: Sequence[Sequence[int]]) -> pb.Int32Rows:
    flat = [value for row in rows for value in row]
    return pb.Int32Rows(values=int32(flat), counts=int32([len(row) for row in rows]))


def id_request(
    query: Sequence[int], items: Sequence[Sequence[int]], labels: Sequence[int] = (4, 5)
) -> pb.ScoreRequest:
    return pb.ScoreRequest(
        query_ids=int32(query),
        item_ids=int32_rows(items),
        labels=pb.Int32Rows(values=int32(labels)),
    )


def text_request(query: str, *items: str) -> pb.ScoreRequest:
    return pb.ScoreRequest(
        query_text=query, item_texts=pb.Texts(texts=items), labels=pb.Int32Rows(values=int32([4]))
    )


@asynccontextmanager
async def served(
    engine: StubEngine, path: Path, *tokens: str, most_bytes: int = 1 << 20
) -> AsyncIterator[tuple[prefill_pb2_grpc.PrefillStub, FrontendMetrics]]:
    """The methods of a front end that is attached to a stub engine."""
    async with (
        listening(engine, path, *tokens, most_bytes=most_bytes) as (address, metrics),
        grpc.aio.insecure_channel(address) as channel,
    ):
        yield prefill_pb2_grpc.PrefillStub(channel), metrics  # type: ignore[no-untyped-call]


@asynccontextmanager
async def listening(
    engine: StubEngine, path: Path, *tokens: str, most_bytes: int = 1 << 20
) -> AsyncIterator[tuple[str, FrontendMetrics]]:
    """The address of a front end that is attached to a stub."""
    metrics = FrontendMetrics()
    connection = EngineConnection(path, metrics, StubCollector())
    limit = [("grpc.max_send_message_length", most_bytes)]
    server = grpc.aio.server(options=limit, interceptors=[BearerAuth(tokens)] if tokens else [])
    service = PrefillService(lambda: connection.session, most_bytes)
    prefill_pb2_grpc.add_PrefillServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    async with Broker(engine, path).running(), connection.running():
        assert await connection.wait_attached(60)
        await server.start()
        yield f"127.0.0.1:{port}", metrics
        await server.stop(None)

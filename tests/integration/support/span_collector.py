"""An OpenTelemetry collector that keeps what it is sent."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)


class SpanCollector(TraceServiceServicer):  # type: ignore[misc]
    """
    Attributes:
        address: where it listens.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._spans: list[Any] = []

    def Export(self, request: Any, _context: Any) -> Any:  # noqa: N802 (gRPC's name)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self._spans.extend(scope.spans)
        return messages.ExportTraceServiceResponse()

    def of_trace(self, trace_id: str) -> dict[str, Any]:
        """Spans of a trace by name, which must be different."""
        found = [span for span in self._spans if span.trace_id.hex() == trace_id]
        named = {span.name: span for span in found}
        assert len(named) == len(found)
        return named


@contextmanager
def collecting() -> Iterator[SpanCollector]:
    server = grpc.server(ThreadPoolExecutor(2))
    port = server.add_insecure_port("127.0.0.1:0")
    collector = SpanCollector(f"127.0.0.1:{port}")
    add_TraceServiceServicer_to_server(collector, server)
    server.start()
    try:
        yield collector
    finally:
        server.stop(grace=None).wait()

"""How calls that end badly are counted, and with which gRPC status they are answered."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from google.protobuf.any_pb2 import Any
from google.rpc.error_details_pb2 import BadRequest, RetryInfo
from google.rpc.status_pb2 import Status

from sglang_prefill_ext.errors import (
    EngineUnavailableError,
    PrefillExtError,
    RequestError,
    ServerBusyError,
)
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.wire.status import end_by

_RETRY_S = 1.0  # the engine's return cannot be foreseen


@contextmanager
def counted(metrics: FrontendMetrics) -> Iterator[None]:
    """Count how a packed call inside ends badly."""
    try:
        yield
    except PrefillExtError as error:
        metrics.record_error(end_by(error).counted)
        raise


def status_of(error: PrefillExtError) -> tuple[grpc.StatusCode, Status]:
    """Return the code of an error, and its message with the details that a program can read."""
    code = grpc.StatusCode[end_by(error).grpc]
    status = Status(code=code.value[0], message=str(error))
    detail = Any()
    if isinstance(error, RequestError):
        violation = BadRequest.FieldViolation(field=error.field, description=str(error))
        detail.Pack(BadRequest(field_violations=[violation]))
    elif isinstance(error, (ServerBusyError, EngineUnavailableError)):
        wait = RetryInfo()
        asked_s = error.retry_after_s if isinstance(error, ServerBusyError) else 0.0
        wait.retry_delay.FromMilliseconds(math.ceil((asked_s or _RETRY_S) * 1e3))
        detail.Pack(wait)
    if detail.type_url:
        status.details.append(detail)
    return code, status

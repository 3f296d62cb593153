"""How calls end that cannot be answered: the code of gRPC, and what a program can read."""

from __future__ import annotations

import math
import re

import grpc
from google.rpc.error_details_pb2 import BadRequest, RetryInfo
from google.rpc.status_pb2 import Status

from sglang_prefill_ext.errors import (
    EngineUnavailableError,
    PrefillExtError,
    RequestError,
    ServerBusyError,
)
from sglang_prefill_ext.wire.status import end_by

_RETRY_S = 1.0  # nobody knows when the engine will be back

_MOST_TOLD = 1200
"""Most bytes of an error's message. gRPC's trailers have it up to three times, escaped, and clients
refuse trailers of more than 8 KB. They would see RESOURCE_EXHAUSTED instead, and repeat the call.
"""

_FIELDS = {
    "text": "prompts",
    "input_ids": "prompts",
    "label_token_ids": "labels",
    "query_embed_overrides": "embed_overrides.query",
    "item_embed_overrides": "embed_overrides.items",
    "embed_override_token_id": "embed_overrides.token_id",
}
"""Our names of fields that errors name as HTTP does."""


def status_of(error: PrefillExtError) -> tuple[grpc.StatusCode, Status]:
    """Return the code of an error, and the beginning of its message with the details that a program
    can read."""
    code = grpc.StatusCode[end_by(error).grpc]
    message, field = _named(error)
    message = message.encode(errors="replace")[:_MOST_TOLD].decode(errors="ignore")
    status = Status(code=code.value[0], message=message)
    if isinstance(error, RequestError):
        violation = BadRequest.FieldViolation(field=field, description=message)
        status.details.add().Pack(BadRequest(field_violations=[violation]))
    elif isinstance(error, (ServerBusyError, EngineUnavailableError)):
        wait = RetryInfo()
        asked_s = error.retry_after_s if isinstance(error, ServerBusyError) else 0.0
        wait.retry_delay.FromMilliseconds(math.ceil((asked_s or _RETRY_S) * 1e3))
        status.details.add().Pack(wait)
    return code, status


def _named(error: PrefillExtError) -> tuple[str, str]:
    """Return the message of an error and the field that is wrong, if any, as it is named here."""
    message, field = str(error), error.field if isinstance(error, RequestError) else ""
    theirs = field.partition("[")[0]
    if (ours := _FIELDS.get(theirs)) is None:
        return message, field
    return re.sub(rf"\b{theirs}\b", ours, message, count=1), field.replace(theirs, ours)

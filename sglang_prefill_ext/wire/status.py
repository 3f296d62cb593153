"""How a packed request can end, and what its caller sees of a bad end."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from sglang_prefill_ext.errors import (
    DeadlineExceededError,
    EngineUnavailableError,
    PackedForwardError,
    PrefillExtError,
    RequestAbortedError,
    RequestError,
    ServerBusyError,
)
from sglang_prefill_ext.wire.stock_reason import StockReason


class Status(StrEnum):
    """How a packed request ended.

    A scheduler says all but the last two. Those come from what lies before it, for a front end in
    another process.
    """

    OK = "ok"
    ABORTED = "aborted"  # the client left, or an operator aborted it
    DECLINED = "declined"  # this model or server cannot pack it, for the `StockReason` told
    FAILED = "failed"  # its forward raised, also when it ran alone; only this job is affected
    REJECTED = "rejected"  # too much waits already; it can be sent again
    EXPIRED = "expired"  # its deadline cannot be met any more
    NOT_FINITE = "not_finite"  # it is computed to NaN, also alone
    NO_ROOM = "no_room"  # for its prefix between two forwards; the stock path can wait for it
    UNFIT = "unfit"  # one of its rows is too long for any forward
    UNREACHABLE = "unreachable"  # the engine has gone
    UNKNOWN_ADAPTER = "unknown_adapter"  # the engine has none of the name that came with the rows


STOCK_ENDS = {
    Status.NOT_FINITE: StockReason.NOT_FINITE,
    Status.NO_ROOM: StockReason.NO_KV_ROOM,
    Status.UNFIT: StockReason.ROW_OVER_BUDGET,
}
"""After which the stock path can serve a request, and why, as after `Status.DECLINED`."""


class BadEnd(NamedTuple):
    """How a caller learns that there is no answer.

    Attributes:
        http: status; 0 where the HTTP server is the engine's own process.
        grpc: name of the status code.
        counted: as what the request is counted.
    """

    status: Status
    error: type[PrefillExtError]
    http: int
    grpc: str
    counted: str

    def error_of(
        self, message: str, *, retry_after_s: float = 0.0, field: str = ""
    ) -> PrefillExtError:
        """Return the error with as much of the details as it has a place for."""
        error = self.error(message)
        if isinstance(error, ServerBusyError):
            error.retry_after_s = retry_after_s
        elif isinstance(error, RequestError):
            error.field = field
        return error


_FAILED = BadEnd(Status.FAILED, PackedForwardError, 500, "INTERNAL", "failed")
BAD_ENDS = (
    BadEnd(Status.UNKNOWN_ADAPTER, RequestError, 400, "INVALID_ARGUMENT", "refused"),
    BadEnd(Status.REJECTED, ServerBusyError, 429, "RESOURCE_EXHAUSTED", "rejected"),
    BadEnd(Status.ABORTED, RequestAbortedError, 503, "ABORTED", "aborted"),
    BadEnd(Status.EXPIRED, DeadlineExceededError, 504, "DEADLINE_EXCEEDED", "expired"),
    BadEnd(Status.UNREACHABLE, EngineUnavailableError, 0, "UNAVAILABLE", "failed"),
    _FAILED,
)
_BY_STATUS = {end.status: end for end in BAD_ENDS}
_BY_HTTP = {end.http: end for end in BAD_ENDS}


def end_with(status: Status) -> BadEnd:
    """Return the end of a status that is neither `Status.OK` nor left to the stock path."""
    return _BY_STATUS[status]


def end_with_http(status: int) -> BadEnd:
    """Return the end that HTTP tells so; an unknown one is a failure."""
    return _BY_HTTP.get(status, _FAILED)


def end_by(error: PrefillExtError) -> BadEnd:
    """Return the end of a request that raised; a defect, as rows that contradict each other, is a
    failure."""
    return next((end for end in BAD_ENDS if isinstance(error, end.error)), _FAILED)

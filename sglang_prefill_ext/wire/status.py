"""How a packed request can end, and how each failure is reported to its caller."""

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

    A scheduler reports all but the last two, which come from what lies between it and a front end.
    """

    OK = "ok"
    ABORTED = "aborted"  # the client left, or an operator aborted it
    DECLINED = "declined"  # this model or server cannot pack it; the message is a `StockReason`
    FAILED = "failed"  # its forward raised, also when it ran alone; others are not affected
    REJECTED = "rejected"  # too much waits already; it can be sent again
    EXPIRED = "expired"  # its deadline cannot be met any more
    NOT_FINITE = "not_finite"  # its values are NaN, also when it ran alone
    NO_ROOM = "no_room"  # no KV slots to keep its prefix between forwards; the stock path can wait
    UNFIT = "unfit"  # one of its rows is too long for any forward
    UNREACHABLE = "unreachable"  # the engine has gone, or is shutting down
    REFUSED = "refused"  # by the engine: it has no such adapter, or an embedding does not fit


STOCK_ENDS = {
    Status.NOT_FINITE: StockReason.NOT_FINITE,
    Status.NO_ROOM: StockReason.NO_KV_ROOM,
    Status.UNFIT: StockReason.ROW_OVER_BUDGET,
}
"""Ends after which the stock path serves the request, with the reason that is counted.

It does so after `Status.DECLINED`, too, for the reason in the message.
"""


class BadEnd(NamedTuple):
    """How a request that ends without an answer is reported.

    Attributes:
        http: status.
        grpc: name of the status code.
        counted: the outcome that metrics count the request under.
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
    BadEnd(Status.REFUSED, RequestError, 400, "INVALID_ARGUMENT", "refused"),
    BadEnd(Status.REJECTED, ServerBusyError, 429, "RESOURCE_EXHAUSTED", "rejected"),
    BadEnd(Status.EXPIRED, DeadlineExceededError, 504, "DEADLINE_EXCEEDED", "expired"),
    BadEnd(Status.UNREACHABLE, EngineUnavailableError, 503, "UNAVAILABLE", "failed"),
    BadEnd(Status.ABORTED, RequestAbortedError, 503, "ABORTED", "aborted"),
    _FAILED,
)
_BY_STATUS = {end.status: end for end in BAD_ENDS}
_BY_HTTP = {end.http: end.status for end in reversed(BAD_ENDS)}


def end_with(status: Status) -> BadEnd:
    """Return the bad end of a status that is neither `Status.OK` nor left to the stock path."""
    return _BY_STATUS[status]


def status_of_http(code: int) -> Status:
    """Return how a request ended that SGLang's own path answers with this HTTP status.

    That is `Status.UNREACHABLE` for 503, with which SGLang refuses what can be sent again.
    """
    return _BY_HTTP.get(code, Status.FAILED)


def end_by(error: PrefillExtError) -> BadEnd:
    """Return the bad end of a request that raised this error.

    Any other error, such as a `PackingError`, is a defect of ours and counts as a failure.
    """
    return next((end for end in BAD_ENDS if isinstance(error, end.error)), _FAILED)

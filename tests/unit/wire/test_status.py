from __future__ import annotations

import json

import msgspec
import pytest

from sglang_prefill_ext.errors import (
    PackingError,
    PrefillExtError,
    RequestError,
    ServerBusyError,
    TooManyItemsError,
)
from sglang_prefill_ext.wire.packed import PackedResult
from sglang_prefill_ext.wire.status import (
    BAD_ENDS,
    STOCK_ENDS,
    BadEnd,
    Status,
    end_by,
    end_with,
    status_of_http,
)


def test_a_status_travels_as_its_word() -> None:
    words = ["ok", "aborted", "declined", "failed", "rejected", "expired"]
    words += ["not_finite", "no_room", "unfit", "unreachable", "refused"]
    assert json.dumps([*Status]) == json.dumps(words)


@pytest.mark.parametrize("status", Status)
def test_a_status_comes_back_as_itself(status: Status) -> None:
    sent = msgspec.msgpack.encode(PackedResult(status, "why"))
    assert msgspec.msgpack.decode(sent, type=PackedResult).status is status


def test_every_status_is_an_answer_the_stock_path_or_an_error() -> None:
    others = [Status.OK, Status.DECLINED, *STOCK_ENDS]
    assert sorted([*others, *(end.status for end in BAD_ENDS)]) == sorted(Status)


@pytest.mark.parametrize("end", BAD_ENDS, ids=lambda end: end.status)
def test_an_end_is_found_by_all_that_tells_it(end: BadEnd) -> None:
    assert end_with(end.status) is end
    assert end_with(status_of_http(end.http)).http == end.http
    assert end_by(end.error("why")) is end


@pytest.mark.parametrize(
    ("kind", "status"),
    [(TooManyItemsError, Status.REFUSED), (PackingError, Status.FAILED)],
)
def test_other_errors_end_like_their_kind(kind: type[PrefillExtError], status: Status) -> None:
    assert end_by(kind("why")).status is status


def test_what_sglang_answers_with_503_can_be_sent_again() -> None:
    others = [end.status for end in BAD_ENDS if end.status is not Status.ABORTED]
    assert [status_of_http(end_with(status).http) for status in others] == others
    assert end_with(status_of_http(503)).grpc == "UNAVAILABLE"


@pytest.mark.parametrize("code", [404, 502])
def test_an_unknown_http_status_is_a_failure(code: int) -> None:
    assert status_of_http(code) is Status.FAILED


def test_an_error_has_the_details_of_its_kind() -> None:
    details = {"retry_after_s": 2.5, "field": "adapter"}
    found = [end.error_of("why", **details) for end in BAD_ENDS]  # type: ignore[arg-type]
    assert [(type(each), str(each)) for each in found] == [(end.error, "why") for end in BAD_ENDS]
    assert [each.field for each in found if isinstance(each, RequestError)] == ["adapter"]
    assert [each.retry_after_s for each in found if isinstance(each, ServerBusyError)] == [2.5]


@pytest.mark.parametrize("end", BAD_ENDS, ids=lambda end: end.status)
def test_an_error_says_its_status(end: BadEnd) -> None:
    told = f"HTTP {end.http}" if end.http else f"gRPC {end.grpc}"
    assert told in (end.error.__doc__ or "")

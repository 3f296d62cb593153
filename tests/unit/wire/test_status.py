from __future__ import annotations

import json

import msgspec
import pytest

from sglang_prefill_ext.errors import (
    PackedForwardError,
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
    end_with_http,
)


def test_a_status_travels_as_its_word() -> None:
    words = ["ok", "aborted", "declined", "failed", "rejected", "expired"]
    words += ["not_finite", "no_room", "unfit", "unreachable", "unknown_adapter"]
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
    assert end_with_http(end.http).http == end.http
    assert end_by(end.error("why")) is end


@pytest.mark.parametrize(
    ("kind", "status"),
    [(TooManyItemsError, Status.UNKNOWN_ADAPTER), (PackingError, Status.FAILED)],
)
def test_other_errors_end_like_their_kind(kind: type[PrefillExtError], status: Status) -> None:
    assert end_by(kind("why")).status is status


def test_an_end_of_the_stock_path_with_503_is_an_abort() -> None:
    others = [end for end in BAD_ENDS if end.status is not Status.UNREACHABLE]
    assert [end_with_http(end.http) for end in others] == others


@pytest.mark.parametrize("status", [404, 502])
def test_an_unknown_http_status_is_a_failure(status: int) -> None:
    assert end_with_http(status).error is PackedForwardError


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

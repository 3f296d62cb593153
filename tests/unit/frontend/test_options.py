from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.options import (
    KEEP_PREFIX_HEADER,
    OPT_OUT_HEADER,
    PRIORITY_HEADER,
    TIMEOUT_HEADER,
    RequestOptions,
    headers_from,
    opted_out,
    options_of,
)

LARGEST = 2**31 - 1


def test_without_headers_nothing_is_special() -> None:
    assert options_of({}, now_ms=5.0) == RequestOptions(priority=0, deadline_ms=None)


@given(st.integers(-LARGEST, LARGEST), st.integers(1, LARGEST), st.floats(0, 2e12))
def test_a_timeout_becomes_a_deadline(priority: int, timeout_ms: int, now_ms: float) -> None:
    headers = {PRIORITY_HEADER: str(priority), TIMEOUT_HEADER: str(timeout_ms)}
    assert options_of(headers, now_ms) == RequestOptions(priority, now_ms + timeout_ms)


@given(st.integers(1, 2**40))
def test_the_servers_timeout_is_for_requests_without_one(timeout_ms: int) -> None:
    plain, own = RequestOptions(3, keep_prefix=True), RequestOptions(deadline_ms=5.0)
    assert plain.within(0) == plain
    assert own.within(timeout_ms) == own
    before_ms = time.time() * 1e3
    bounded = plain.within(timeout_ms)
    after_ms = time.time() * 1e3
    assert bounded.deadline_ms is not None
    assert before_ms - 1 <= bounded.deadline_ms - min(timeout_ms, LARGEST) <= after_ms + 1
    assert (bounded.priority, bounded.keep_prefix) == (3, True)


def test_a_sign_is_fine() -> None:
    assert options_of({PRIORITY_HEADER: "+3"}, now_ms=0).priority == 3


@pytest.mark.parametrize("header", [PRIORITY_HEADER, TIMEOUT_HEADER])
@pytest.mark.parametrize(
    "value", ["", " ", "high", "1.5", "1e3", "0x10", "1_0", "٣", "--1", str(2**31), "9" * 5000]
)
def test_other_values_are_refused_by_header_value_and_remedy(header: str, value: str) -> None:
    with pytest.raises(RequestError) as refused:
        options_of({header: value}, now_ms=0)
    message = str(refused.value)
    assert message.startswith(f"{header}: {value!r} is not a whole number from ")
    assert message.endswith(f"to {LARGEST}. Send such a number, or leave the header out.")


@pytest.mark.parametrize(("value", "expected"), [("on", True), ("ON", True), ("off", False)])
def test_a_prefix_can_be_marked(value: str, expected: bool) -> None:
    assert options_of({KEEP_PREFIX_HEADER: value}, now_ms=0).keep_prefix is expected


@pytest.mark.parametrize(
    ("header", "default"), [(KEEP_PREFIX_HEADER, "off"), (OPT_OUT_HEADER, "on")]
)
@pytest.mark.parametrize("value", ["", "yes", "1", "true "])
def test_other_marks_are_refused(header: str, default: str, value: str) -> None:
    said = f"{header}: {value!r} is neither on nor off. Leave it out for {default}."
    with pytest.raises(RequestError, match=re.escape(said)):
        options_of({header: value}, now_ms=0)


def test_spaces_around_a_value_are_no_part_of_it() -> None:
    """HTTP allows them, and httptools leaves those behind the value."""
    headers = {PRIORITY_HEADER: "3 ", KEEP_PREFIX_HEADER: "on\t", TIMEOUT_HEADER: " 5 "}
    assert options_of(headers, now_ms=0) == RequestOptions(3, 5, keep_prefix=True)
    assert opted_out({OPT_OUT_HEADER: "off "})


@pytest.mark.parametrize("value", ["0", "-1"])
def test_a_timeout_lies_ahead(value: str) -> None:
    with pytest.raises(RequestError, match="from 1 to"):
        options_of({TIMEOUT_HEADER: value}, now_ms=0)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, False),
        ({"x-prefill-only": "off"}, True),
        ({"x-prefill-only": "OFF"}, True),
        ({"x-prefill-only": "on"}, False),
    ],
)
def test_opting_out(headers: dict[str, str], expected: bool) -> None:
    assert opted_out(headers) is expected


@pytest.mark.parametrize(
    "options",
    [RequestOptions(), RequestOptions(-3, None, True), RequestOptions(7, 2e12)],
    ids=str,
)
def test_options_travel_in_headers(
    options: RequestOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = 2e12 - 5_000
    monkeypatch.setattr(time, "time", lambda: now_ms / 1e3)
    assert options_of(headers_from(options), now_ms) == options


def test_a_deadline_that_has_passed_travels_as_the_shortest_one() -> None:
    headers = headers_from(RequestOptions(deadline_ms=5.0))
    assert options_of(headers, now_ms=10.0).deadline_ms == 11.0


def test_the_least_priority_of_grpc_travels_as_the_least_of_headers() -> None:
    headers = headers_from(RequestOptions(priority=-LARGEST - 1))
    assert options_of(headers, now_ms=0.0).priority == -LARGEST

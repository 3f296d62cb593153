from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.client.options import Deadline, Options
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.options import opted_out, options_of


@given(
    st.integers(-(2**31) + 1, 2**31 - 1),
    st.none() | st.floats(1e-6, 2_000_000),
    st.booleans(),
    st.booleans(),
)
def test_the_server_reads_what_was_meant(
    priority: int, left_s: float | None, keep_prefix: bool, stock: bool
) -> None:
    headers = Options(priority, keep_prefix=keep_prefix, stock=stock).headers(left_s)
    read = options_of(headers, now_ms=0)
    assert (read.priority, read.keep_prefix) == (priority, keep_prefix)
    assert opted_out(headers) is stock
    if left_s is None:
        assert read.deadline_ms is None
    else:
        assert read.deadline_ms == math.ceil(left_s * 1000)


def test_nothing_special_needs_no_header() -> None:
    assert Options().headers(None) == {}


@pytest.mark.parametrize("timeout_s", [0, -1.5, math.nan, math.inf, 3e6])
def test_a_timeout_that_no_server_takes_is_refused(timeout_s: float) -> None:
    with pytest.raises(RequestError, match=r"timeout_s: .*Leave it out"):
        Options(timeout_s=timeout_s)


def test_a_timeout_may_be_short() -> None:
    assert Options(timeout_s=0.001).timeout_s == 0.001


def test_time_runs_out() -> None:
    clock = iter([100.0, 101.0, 106.0])
    deadline = Deadline(5, lambda: next(clock))
    assert [deadline.left_s(), deadline.left_s()] == [4.0, -1.0]


def test_without_a_timeout_there_is_always_time() -> None:
    assert Deadline(None).left_s() == math.inf

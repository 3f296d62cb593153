from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.judges.opinion import Opinion, Verdict, compare

OPINION = Opinion(2, np.array([-1.0, -2.0, -3.0]), {"accuracy": 0.5})


def verdict(extension: Opinion = OPINION, packed: int = 2, **stock_path: int) -> Verdict:
    return compare("judge 1", OPINION, extension, {"packed": packed, **stock_path}, 1e-4)


def test_equal_opinions_have_no_faults() -> None:
    near = replace(OPINION, numbers=OPINION.numbers + 5e-5)
    assert verdict(near).faults() == []
    assert verdict(near).largest_difference == pytest.approx(5e-5)


@pytest.mark.parametrize("numbers", [[-1.0, -2.0, -3.001], [-1.0, -2.0], [-1.0, np.nan, -3.0]])
def test_numbers_that_differ_are_a_fault(numbers: list[float]) -> None:
    (fault,) = verdict(replace(OPINION, numbers=np.array(numbers))).faults()
    assert fault.startswith("numbers differ by")


@pytest.mark.parametrize("marks", [{"accuracy": 0.5000001}, {"recall": 0.5}])
def test_other_marks_are_a_fault(marks: dict[str, float]) -> None:
    (fault,) = verdict(replace(OPINION, marks=marks)).faults()
    assert fault.startswith("accuracy is 0.5 with stock")


def test_requests_on_the_stock_path_are_a_fault() -> None:
    for found in (verdict(packed=1), verdict(packed=3), verdict(stock=1)):
        (fault,) = found.faults()
        assert fault.startswith("of 2 requests the extension counted")


def test_other_requests_are_a_fault() -> None:
    more = verdict(replace(OPINION, requests=3), packed=3)
    assert more.faults() == ["numbers differ by inf"]


def test_nothing_compared_is_a_fault() -> None:
    nothing = Opinion(0, np.zeros(0), {})
    assert "nothing was compared" in compare("judge 1", nothing, nothing, {}, 1.0).faults()

from __future__ import annotations

import pytest

from bench.decode.plan import ALONE, OPEN, SATURATED
from bench.decode.report import Finding, findings, pace_by_share, phase_table
from bench.score.plan import EXTENSION, STOCK
from tests.unit.bench.commands import printed
from tests.unit.bench.results import decode_result

RESULTS = [
    result
    for repeat, factor in enumerate((1.0, 0.9))
    for result in (
        decode_result(STOCK, ALONE, repeat=repeat, tokens_per_s=100.0),
        decode_result(
            STOCK, OPEN, repeat=repeat, tokens_per_s=50.0, ms_per_token=80.0, items_per_s=300.0
        ),
        decode_result(EXTENSION, ALONE, repeat=repeat, tokens_per_s=100.0 * factor),
        decode_result(EXTENSION, OPEN, repeat=repeat, tokens_per_s=80.0, items_per_s=330.0),
        decode_result(
            EXTENSION,
            SATURATED,
            repeat=repeat,
            tokens_per_s=40.0 * factor,
            ms_per_token=100.0 / factor,
            gap_p99_ms=70.0,
            packed_share=0.6,
        ),
    )
]


def test_ratios_pair_neighbouring_starts() -> None:
    found = {each.what: each for each in findings(RESULTS, decode_slowdown=4)}
    assert len(found) == 8
    alone = found["alone: tokens/s, of stock"]
    assert alone.values == pytest.approx([1.0, 0.9])
    assert alone.value == pytest.approx(0.95)
    assert alone.is_met is False
    assert found["open loop: tokens/s, of stock"].values == pytest.approx([1.6, 1.6])
    assert found["open loop: items/s, of stock"].values == pytest.approx([1.1, 1.1])
    assert found["saturated: pace, of the share of time"].values == pytest.approx([1.0, 0.9])
    gap = found["saturated: gap P99, of alone"]
    assert gap.values == pytest.approx([3.5, 3.5])
    assert (gap.aim, gap.is_met) == ("≤ 4", True)
    (tighter,) = (f for f in findings(RESULTS, decode_slowdown=3) if f.what == gap.what)
    assert tighter.is_met is False


def test_the_pace_is_held_against_the_time_that_packed_forwards_leave() -> None:
    alone = decode_result(EXTENSION, ALONE, ms_per_token=9.0)
    beside = decode_result(EXTENSION, SATURATED, ms_per_token=40.0, packed_share=0.75)
    assert pace_by_share(alone, beside) == pytest.approx(0.9)


def test_an_aim_has_two_directions_or_none() -> None:
    assert [Finding("x", [v], least=0.97).is_met for v in (0.96, 0.97)] == [False, True]
    assert [Finding("x", [v], most=4.0).is_met for v in (4.0, 4.1)] == [True, False]
    assert Finding("x", [1.0]).is_met is None
    assert Finding("x", [1.0]).aim == "-"


def test_phases_show_medians_and_only_what_was_measured() -> None:
    lines = printed(phase_table(RESULTS)).splitlines()
    (saturated,) = (line.split() for line in lines if "saturated" in line)
    # 38 tokens/s: the median of 40 and 36.
    assert saturated[:3] == ["saturated", "extension", "38"]
    assert saturated[4:] == ["35.00", "70.00", "0", "60%"]
    (stock,) = (line.split() for line in lines if "open loop" in line and "stock" in line)
    assert stock[3:] == ["50", "80.00", "10.00", "20.00", "300", "-"]

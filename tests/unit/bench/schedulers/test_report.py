from __future__ import annotations

from dataclasses import replace

from rich.table import Table

from bench.schedulers.report import measured_table, model_table, off_by
from bench.schedulers.session import SchedulersResult
from tests.unit.bench.commands import printed

ONE = SchedulersResult(
    preset="micro",
    shape="60+2x50",
    clients=16,
    schedulers=1,
    requests=300,
    seconds=3.0,
    requests_per_s=100.0,
    p50_ms=20.0,
    p99_ms=40.0,
    requests_per_forward=1.5,
    python_ms=4.0,
    device_ms=6.0,
    front_ms=2.0,
    cpu_ms=12.0,
    predicted_per_s=110.0,
    bound_by="schedulers",
)
STOCK = replace(
    ONE,
    schedulers=0,
    requests_per_s=25.0,
    requests_per_forward=None,
    predicted_per_s=None,
    bound_by="",
)
TWO = replace(ONE, schedulers=2, requests_per_s=160.0, predicted_per_s=152.0, bound_by="cores")
RESULTS = [STOCK, ONE, TWO]


def lines(table: Table) -> list[list[str]]:
    return [line.split() for line in printed(table).splitlines() if line.strip()]


def test_rates_are_over_that_of_one_scheduler() -> None:
    *_, stock, one, two = lines(measured_table(RESULTS))
    assert stock[:6] == ["stock", "0.25×", "-", "-", "25.0", "-"]
    assert one[:7] == ["1", "scheduler", "1.00×", "1.10×", "schedulers", "100.0", "1.50"]
    assert two[:6] == ["2", "schedulers", "1.60×", "1.52×", "cores", "160.0"]
    assert one[7:] == ["20.00", "40.00", "4.00", "6.00", "2.00", "12.00"]


def test_the_error_of_the_model() -> None:
    assert list(off_by(RESULTS)) == [
        "1 scheduler: model +10% of measured",
        "2 schedulers: model -5% of measured",
    ]


def test_the_model_alone() -> None:
    *_, two, four = lines(model_table([2, 4]))
    # Device over Python time 0.1, 0.25, 0.5, 1 and 2; in turn and side by side.
    assert two == ["2", *("2.00 2.00 " * 3 + "1.00 2.00 " * 2).split()]
    assert four == ["4", *("4.00 4.00 " * 2 + "2.00 4.00 1.00 4.00 1.00 4.00").split()]

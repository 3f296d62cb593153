from __future__ import annotations

from bench.soak.__main__ import soak_table
from bench.soak.windows import SoakWindow, Verdict
from tests.unit.bench.commands import printed

WINDOWS = [
    SoakWindow(5.0, 100.0, 3.5, 9.25, {"scheduler 1": 900.0, "tokenizer 2": 500.0}),
    SoakWindow(10.0, 98.0, 3.6, 9.5, {"scheduler 1": 901.0, "tokenizer 2": 500.0}),
]


def test_the_table_has_both_ends_and_the_verdict() -> None:
    text = printed(soak_table(WINDOWS, Verdict(-0.021, 0.001, 7, 2, latency_drift=0.51)))
    for words in (
        "+51.0%",
        "100.0",
        "98.0",
        "1,400",
        "1,401",
        "-2.1%",
        "+0.1%",
        "7 pauses",
        "2 over 20 ms",
    ):
        assert words in text

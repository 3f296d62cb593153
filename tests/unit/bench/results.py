"""Results made by hand, for the tests of what is done with them."""

from __future__ import annotations

from bench.record import Result


def result(
    path: str,
    *,
    items_per_s: float = 100.0,
    p50_ms: float = 10.0,
    shape: str = "60+2x50",
    closed: bool = True,
    repeat: int = 0,
    preset: str = "micro",
) -> Result:
    return Result(
        preset=preset,
        shape=shape,
        load="8 clients" if closed else "70% of stock",
        closed=closed,
        path=path,
        repeat=repeat,
        rate_per_s=None if closed else 5.0,
        requests=40,
        packed_share=1.0 if path == "extension" else 0.0,
        seconds=4.0,
        requests_per_s=items_per_s / 50,
        items_per_s=items_per_s,
        p50_ms=p50_ms,
        p90_ms=2 * p50_ms,
        p99_ms=3 * p50_ms,
        generator_cpu_share=0.01,
        operation_ratio=19.4,
    )

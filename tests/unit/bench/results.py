"""Results made by hand, for tests of reports and plots."""

from __future__ import annotations

from bench.decode.plan import OPEN, DecodeResult
from bench.mixed.mix import MixResult
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


def mix_result(
    variant: str,
    *,
    longest_p99_ms: float,
    mean_slowdown: float = 2.0,
    requests_per_forward: float | None = 1.5,
) -> MixResult:
    return MixResult(
        preset="micro",
        variant=variant,
        load_of="stock",
        load=0.95,
        rate_per_s=40.0,
        requests=400,
        requests_per_s=39.0,
        idle_ms={32: 5.0, 128: 7.0},
        mean_slowdown=mean_slowdown,
        length_slowdown={32: 12.0, 128: 4.0},
        longest_p99_ms=longest_p99_ms,
        requests_per_forward=requests_per_forward,
        generator_cpu_share=0.02,
    )


def decode_result(
    path: str,
    phase: str,
    *,
    repeat: int = 0,
    tokens_per_s: float = 100.0,
    ms_per_token: float = 40.0,
    gap_p99_ms: float = 20.0,
    items_per_s: float = 0.0,
    packed_share: float | None = None,
) -> DecodeResult:
    return DecodeResult(
        preset="micro",
        path=path,
        repeat=repeat,
        phase=phase,
        clients=4,
        seconds=5.0,
        tokens_per_s=tokens_per_s,
        ms_per_token=ms_per_token,
        gap_p50_ms=gap_p99_ms / 2,
        gap_p99_ms=gap_p99_ms,
        offered_per_s=3.0 if phase == OPEN else None,
        items_per_s=items_per_s,
        packed_share=packed_share,
        generator_cpu_share=0.03,
    )

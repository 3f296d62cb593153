from __future__ import annotations

import pytest

from bench.fleet.turns import Comparison
from bench.parallelism.link import Link
from bench.parallelism.prediction import predict, serving_of, verdict, verdicts
from sglang_prefill_ext.sizing.forward import Serving
from sglang_prefill_ext.sizing.parallelism import Parallelism
from sglang_prefill_ext.sizing.shape import Shape
from tests.unit.sizing.models import decoder

TINY = decoder(4, 256, 8, 4, 32, 704, 8000)
SCHEDULER = {
    "counters": {"tokens_computed": 9_000, "forwards": 10},
    "launch_tokens": 100,
    "calibrated_tokens_per_s": 0.0,
    "busy_s": 2.0,
    "forward_budget": {"max_tokens": 16_384},
}
SUBJECTS = {str(each): each for each in (Parallelism(1, 1), Parallelism(2, 1), Parallelism(1, 2))}


def _serving() -> Serving:
    return serving_of(TINY, SCHEDULER, Link(gb_s=1.0, us=100.0))


def _measured(subject: str, p50_ms: float) -> Comparison:
    ratio = (100 / p50_ms,) * 3
    return Comparison("50+150x50", 1, subject, p50_ms, p50_ms, 1e3 / p50_ms, 1.0, ratio, ratio)


def test_an_engine_says_how_fast_its_core_is() -> None:
    device = _serving().device
    assert device.launch_ms == pytest.approx(20)
    assert device.tflops == pytest.approx(5_000 * TINY.body_operations / 1e12)
    took_s = _serving().forward(Shape.parse("50+150x50"), 1).seconds
    assert took_s == pytest.approx(0.02 + 7_550 / 5_000, rel=0.2)


def test_predicted_stands_beside_measured() -> None:
    measured = [_measured("1 x TP1", 100), _measured("2 x TP1", 50), _measured("1 x TP2", 80)]
    found = predict(_serving(), measured, SUBJECTS)
    one, replicas, ranks = found
    assert (one.faster, one.measured_faster) == (1.0, 1.0)
    assert 1.9 < replicas.faster < 2.0
    assert replicas.measured_faster == 2.0
    assert 1 < ranks.faster < replicas.faster
    (line,) = verdicts(found, [measured[1], measured[2]], "2 x TP1", "1 x TP2")
    assert line.startswith("2 x TP1 over 1 x TP2, 50+150x50, 1 clients: predicted 1.")
    assert line.endswith(", measured 2.00x (2.00 to 2.00): as predicted")


@pytest.mark.parametrize(
    ("predicted", "measured", "said"),
    [
        (1.5, (1.2, 1.1, 1.3), "as predicted"),
        (0.5, (0.8, 0.7, 0.9), "as predicted"),
        (1.5, (0.8, 0.7, 0.9), "NOT as predicted"),
        (1.5, (1.2, 0.9, 1.3), "no order"),
    ],
)
def test_a_range_that_crosses_1_has_no_order(
    predicted: float, measured: tuple[float, float, float], said: str
) -> None:
    assert verdict(predicted, measured) == said

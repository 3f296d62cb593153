"""Predict as `sglang-prefill plan` does, for cores whose speed an engine has measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.fleet.turns import Comparison, shown
from bench.parallelism.link import Link
from sglang_prefill_ext.fleet.planning.cost import Speed
from sglang_prefill_ext.sizing.device import Device
from sglang_prefill_ext.sizing.forward import Serving
from sglang_prefill_ext.sizing.model import ModelShape
from sglang_prefill_ext.sizing.parallelism import Load, Parallelism, forecast
from sglang_prefill_ext.sizing.shape import Shape

FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class Predicted:
    """Prediction and measurement of one parallelism under one load.

    Attributes:
        measured_ms, least_ms: measured P50 latency, and the least latency of all answers.
        faster, measured_faster: latency of one replica with one rank, over that of this one.
    """

    shape: str
    clients: int
    subject: str
    predicted_ms: float
    measured_ms: float
    least_ms: float
    faster: float
    measured_faster: float


def serving_of(model: ModelShape, scheduler: Mapping[str, Any], link: Link) -> Serving:
    """Read an engine's speed from an entry of ``schedulers`` on its status page."""
    speed = Speed.of_status(scheduler)
    device = Device.measured(model, 1 / speed.token_s, speed.launch_s * 1e3, link.gb_s, link.us)
    return Serving(model, device, FLOAT32_BYTES, FLOAT32_BYTES)


def predict(
    serving: Serving, measured: Iterable[Comparison], subjects: Mapping[str, Parallelism]
) -> list[Predicted]:
    """Predict every measurement.

    Args:
        subjects: name -> parallelism; the first is the reference.
    """
    found = []
    reference = next(iter(subjects.values()))
    for each in measured:
        shape, load = Shape.parse(each.shape), Load(each.clients)
        one_s = forecast(serving, reference, shape, load).latency_s
        own_s = forecast(serving, subjects[each.subject], shape, load).latency_s
        found.append(
            Predicted(
                shape=each.shape,
                clients=each.clients,
                subject=each.subject,
                predicted_ms=own_s * 1e3,
                measured_ms=each.p50_ms,
                least_ms=each.least_ms,
                faster=one_s / own_s,
                measured_faster=each.faster[0],
            )
        )
    return found


def verdicts(
    found: Sequence[Predicted], measured: Iterable[Comparison], subject: str, other: str
) -> Iterator[str]:
    """Say for every load whether `subject` is faster than `other` as predicted.

    Args:
        measured: comparisons of `subject` (and others) with `other`, turn by turn.
    """
    predicted = {(each.shape, each.clients, each.subject): each.faster for each in found}
    for each in measured:
        if each.subject == subject:
            ours, theirs = (predicted[each.shape, each.clients, name] for name in (subject, other))
            yield (
                f"{subject} over {other}, {each.shape}, {each.clients} clients: predicted "
                f"{ours / theirs:.2f}x, measured {shown(each.faster)}: "
                f"{verdict(ours / theirs, each.faster)}"
            )


def verdict(predicted: float, measured: tuple[float, float, float]) -> str:
    """Say whether the measured order is the predicted one; a range around 1 shows no order.

    Args:
        measured: the median ratio, the lowest and the highest.
    """
    if measured[1] <= 1 <= measured[2]:
        return "no order"
    return "as predicted" if (predicted > 1) == (measured[0] > 1) else "NOT as predicted"

"""Plan of the measurement with mixed lengths (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from bench.score.plan import STOCK

ALONE, FCFS, SRPT = "fcfs, one a forward", "fcfs", "srpt"
VARIANTS = {
    STOCK: (),
    ALONE: ("--prefill-only-order", "fcfs", "--prefill-only-launch-tokens", "1"),
    FCFS: ("--prefill-only-order", "fcfs"),
    SRPT: ("--prefill-only-order", "srpt"),
}
"""Variant of a server -> its flags. If a launch costs 1 token, only requests in a long queue
share a forward."""

SATURATED_BY = {STOCK: "stock", ALONE: "extension"}
"""Variant whose rate in a closed loop is a load of 1 -> name of that load."""


@dataclass(frozen=True, slots=True)
class MixPlan:
    """What to run.

    Attributes:
        lengths: of prompts, in tokens, ascending; all are equally frequent.
        seconds: least length of an open loop.
        saturation_seconds: least length of the closed loop that finds the rate of load 1.
        load: share of the saturation rate that is offered.
        clients: of the closed loop that finds the rate.
        dtype: of the model in all servers; decides the gate's tolerance.
        extension_args: flags of every variant of the extension, before the variant's own.
        seed: of prompts and arrivals.
    """

    lengths: tuple[int, ...]
    seconds: float
    saturation_seconds: float
    load: float = 0.95
    clients: int = 16
    dtype: str = "float32"
    extension_args: tuple[str, ...] = ()
    seed: int = 0

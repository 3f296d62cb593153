"""Plan and results of the measurement of generations beside packed load (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from bench.decode.stream import DecodeFigures
from bench.score.plan import EXTENSION
from bench.workloads import USUAL_SHAPE, Shape

ALONE, OPEN, SATURATED = "alone", "open loop", "saturated"
"""Phases: generation alone, beside an open loop of scoring, beside a saturating closed loop."""


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """What to run.

    Attributes:
        seconds: length of each phase, without its warm-up.
        alternations: how often each of the two servers is started, in turn.
        decode_slowdown: the value of ``--prefill-only-decode-slowdown``: by at most this factor,
            the extension promises, does packed load lengthen the time between tokens.
        shape: of scoring requests.
        clients: number of clients that generate.
        prompt_tokens, new_tokens: lengths of each generation.
        share: rate of the open loop, as a share of the rate that stock reaches in a closed loop of
            scoring without generations.
        score_clients: clients of the closed loops of scoring.
        dtype: of the model in both servers; decides the gate's tolerance.
        extension_args: further flags of the extension's server.
    """

    seconds: float
    alternations: int
    decode_slowdown: int
    shape: Shape = USUAL_SHAPE
    clients: int = 4
    prompt_tokens: int = 128
    new_tokens: int = 32
    share: float = 0.5
    score_clients: int = 4
    dtype: str = "float32"
    extension_args: tuple[str, ...] = ()

    def phases(self, path: str) -> tuple[str, ...]:
        """The phases in the order in which they run on a server."""
        return (ALONE, OPEN, SATURATED) if path == EXTENSION else (ALONE, OPEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeResult(DecodeFigures):
    """One phase on one server.

    Attributes:
        preset: model.
        path: ``stock`` or ``extension``.
        repeat: which start of this server, from 0.
        phase: `ALONE`, `OPEN` or `SATURATED`.
        clients: number of clients that generate.
        seconds: length of the measurement.
        offered_per_s: offered scoring requests per second in the open loop; None in other phases.
        items_per_s: scored items per second meanwhile.
        packed_share: share of the time in which packed forwards ran; None for stock.
        generator_cpu_share: of one core, used by the load generator.
    """

    preset: str
    path: str
    repeat: int
    phase: str
    clients: int
    seconds: float
    offered_per_s: float | None
    items_per_s: float
    packed_share: float | None
    generator_cpu_share: float

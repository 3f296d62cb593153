"""Run stock and extension in turn: start, pass the gate, generate in every phase, stop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.cores import SINGLE_THREADED, scheduler_apart
from bench.decode.beside import (
    SCORING_MARGIN_S,
    WARM_UP_S,
    Phase,
    Throughout,
    generate_each,
    run_phase,
)
from bench.decode.plan import OPEN, SATURATED, DecodePlan, DecodeResult
from bench.decode.stream import Generation, decode_figures
from bench.gate import GateError
from bench.http_client import post_bytes
from bench.load import Window, ask_each, closed_loop, open_loop, poisson_arrivals, run_loop
from bench.run import Run
from bench.score.plan import EXTENSION, PATHS, STOCK, Case, make_cases, server_flags
from bench.server import MeasuredServer
from bench.workloads import Shape, draw_requests, generate_body
from sglang_prefill_ext.sizing.model import ModelShape

_PROMPTS = 16


@dataclass(frozen=True, slots=True)
class DecodeCase:
    """The prepared requests: generations, and the scoring requests beside them."""

    prompts: list[bytes]
    scoring: Case


def make_decode_case(model: Path, plan: DecodePlan) -> DecodeCase:
    """Prepare the requests for the model in a directory."""
    vocabulary = ModelShape.from_directory(model).vocabulary
    prompts = draw_requests(Shape(plan.prompt_tokens, 0, 1), vocabulary, _PROMPTS, seed=0)
    (scoring,) = make_cases(model, [plan.shape])
    return DecodeCase(
        [post_bytes("/generate", generate_body(each.query, plan.new_tokens)) for each in prompts],
        scoring,
    )


@dataclass(slots=True)
class DecodeRun(Run[DecodePlan, DecodeResult]):
    """Measures every phase on both servers; the gate compares scores.

    Attributes:
        equal_generations: number of generations that were found equal to the first one, stock's,
            of the same prompt.
    """

    equal_generations: int = 0
    _stock_rate: float = 0.0
    _expected_ids: dict[int, list[int]] = field(init=False, default_factory=dict)

    def run(self) -> None:
        """Measure stock and extension in turn.

        Raises:
            GateError: their answers disagree; then no figure may be shown.
            LoadError: a server failed under load.
            ServerStartError: a server did not start.
        """
        case = make_decode_case(self.model, self.plan)
        slowdown = ("--prefill-only-decode-slowdown", str(self.plan.decode_slowdown))
        own = (*self.plan.extension_args, *slowdown)
        for repeat in range(self.plan.alternations):
            for path in PATHS:
                self.tell(f"{self.preset}: start {repeat + 1} of {path}")
                log = self.model.parent / f"{self.preset}-{path}.log"
                args = server_flags(path, *own, dtype=self.plan.dtype)
                with (
                    MeasuredServer(self.model, args, env=SINGLE_THREADED, log_path=log) as server,
                    scheduler_apart(server.pids),
                ):
                    self._check_before_timing(path, server.port, case)
                    if not self._stock_rate:
                        self._score_alone(server.port, case)
                    for phase in self.plan.phases(path):
                        self.tell(f"{self.preset}: {path}, generation {phase}")
                        self._measure(path, repeat, server.port, case, phase)

    def _check_before_timing(self, path: str, port: int, case: DecodeCase) -> None:
        self._compare_scores(path, "gate", ask_each(port, case.scoring.gate))
        self._read(path, "before timing", run_loop(generate_each(port, case.prompts)))

    def _score_alone(self, port: int, case: DecodeCase) -> None:
        """Measure stock's rate of scoring without generations; the open loop gets a share of it."""
        self.tell(f"{self.preset}: {STOCK}, scoring alone")
        window = Window(self.plan.seconds / 2, 2 * self.plan.score_clients)
        seen = run_loop(closed_loop(port, case.scoring.pool, self.plan.score_clients, window))
        self._compare_scores(STOCK, "timed", seen.answers)
        self._stock_rate = seen.requests_per_s

    def _measure(self, path: str, repeat: int, port: int, case: DecodeCase, name: str) -> None:
        rate = self.plan.share * self._stock_rate if name == OPEN else None
        scoring, throughout = None, None
        if name == SATURATED:
            throughout = Throughout()
            scoring = closed_loop(port, case.scoring.pool, self.plan.score_clients, throughout)
        elif rate is not None:
            window = Window(WARM_UP_S + self.plan.seconds + SCORING_MARGIN_S, 1)
            arrivals = poisson_arrivals(rate, window, seed=0)
            scoring = open_loop(port, case.scoring.pool, arrivals)
        phase = run_loop(
            run_phase(
                port,
                case.prompts,
                self.plan.clients,
                self.plan.seconds,
                scoring=scoring,
                throughout=throughout,
                is_extension=path == EXTENSION,
            )
        )
        generations = self._read(path, name, phase)
        if phase.scoring is not None:
            self._compare_scores(path, "timed", phase.scoring.answers)
        figures = decode_figures(generations, phase.begin_s, phase.end_s)
        self.results.append(
            DecodeResult(
                preset=self.preset,
                path=path,
                repeat=repeat,
                phase=name,
                clients=self.plan.clients,
                seconds=phase.seconds,
                **asdict(figures),
                offered_per_s=rate,
                items_per_s=phase.scored_per_s * self.plan.shape.items,
                packed_share=phase.packed_share,
                generator_cpu_share=phase.generator_cpu_s / phase.seconds,
            )
        )

    def _read(self, path: str, name: str, phase: Phase) -> list[Generation]:
        """Read a phase's generations; compare each with the first one of the same prompt."""
        generations = [Generation.from_pieces(*answer) for answer in phase.answers]
        for each in generations:
            expected = self._expected_ids.get(each.number)
            if expected is None:
                self._expected_ids[each.number] = each.output_ids
                continue
            self.equal_generations += 1
            if each.output_ids != expected:
                raise GateError(
                    f"{self.preset}, {path}, {name}: generation {each.number} differs from stock's"
                    f" first: {each.output_ids} instead of {expected}"
                )
        return generations

    def _compare_scores(self, path: str, requests: str, answers: Mapping[int, bytes]) -> None:
        self.gate.hold(path, f"{self.preset}, scores", requests, answers)

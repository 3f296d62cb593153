"""Run stock and extension in turn: start, measure every load, compare all answers, stop."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np

from bench.cores import scheduler_apart
from bench.decisions.kinds import Kind, Prompts, numbers_of
from bench.gate import TOLERANCE, GateError, largest_logprob_difference
from bench.http_client import post_bytes
from bench.load import Window, closed_loop, run_loop
from bench.load_generators import wrk
from bench.record import Result
from bench.score.plan import BEST_STOCK_ARGS, EXTENSION, PATHS, QUIET_ARGS, SPIN_ARGS, STOCK
from bench.score.session import result_of
from bench.server import MeasuredServer
from bench.status import packed_requests
from bench.workloads import ClosedLoop

Requests: TypeAlias = list[list[list[int]]]
"""For each request, the token ids of each of its prompts."""

_ASK_S = 1.0
"""Least length of the loop that only collects answers, if wrk makes the measured load."""


@dataclass(slots=True)
class AnswerGate:
    """Compares the extension's numbers with stock's, by the tolerance of log-probabilities.

    Attributes:
        largest: the largest difference so far.
        compared: number of compared answers so far.
    """

    kind: Kind
    tolerance: float = TOLERANCE["float32"]
    largest: float = 0.0
    compared: int = 0

    def check(self, stock: Mapping[int, bytes], extension: Mapping[int, bytes]) -> None:
        """Compare the answers to the requests that both servers answered, by request number.

        Raises:
            GateError: answers differ, or no request was answered by both.
        """
        for number in stock.keys() & extension.keys():
            ours, theirs = (numbers_of(self.kind, each[number]) for each in (extension, stock))
            difference = largest_logprob_difference(theirs, ours, self.tolerance)
            self.largest = float(np.maximum(self.largest, difference))
            self.compared += 1
        if not self.compared or not self.largest <= self.tolerance:
            raise GateError(
                f"stock and extension disagree: {self.largest:.1e} of {self.tolerance:.1e}, "
                f"{self.compared} answers compared"
            )

    def as_dict(self) -> dict[str, float]:
        return {"tolerance": self.tolerance, "largest": self.largest, "compared": self.compared}


@dataclass(slots=True)
class DecisionRun:
    """All measurements of one kind on one model.

    Attributes:
        model: its directory, named after the preset.
        prompts: the prompts of each request.
        clients: numbers of clients of the closed loops.
        seconds: least length of each loop.
        threads: threads of one forward on a CPU.
        spin: idle schedulers poll for work. Then a lone request is answered sooner, but many
            clients have one core less.
        apart: only schedulers run on the first core, which imitates a GPU; only one server at a
            time is busy.
        by_wrk: wrk makes the measured load, so that Python takes no CPU time from it; a short
            loop before it collects the answers that are compared.
    """

    model: Path
    kind: Kind
    prompts: Prompts
    clients: list[int]
    seconds: float
    threads: int
    spin: bool
    apart: bool
    by_wrk: bool
    gate: AnswerGate = field(init=False)
    results: list[Result] = field(default_factory=list)
    _stock_answers: dict[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gate = AnswerGate(self.kind)

    def in_turn(self, starts: int, requests: Requests, tell: Callable[[str], None]) -> None:
        """Start and measure the servers in turn, each `starts` times.

        Raises:
            GateError: their answers disagree; then no figure may be shown.
        """
        for repeat in range(starts):
            for path in PATHS:
                tell(f"start {repeat + 1} of {path}")
                with self._server(path) as server, self._placed(server):
                    self._measure(server.port, path, repeat, requests)

    def side_by_side(self, turns: int, requests: Requests, tell: Callable[[str], None]) -> None:
        """Start both servers once, and measure them in turn, each `turns` times.

        The server that is not measured is idle.

        Raises:
            GateError: see `in_turn`.
        """
        with (
            self._server(STOCK) as stock,
            self._server(EXTENSION) as extension,
            self._placed(stock, extension),
        ):
            for repeat in range(turns):
                tell(f"turn {repeat + 1}")
                for path, server in ((STOCK, stock), (EXTENSION, extension)):
                    self._measure(server.port, path, repeat, requests)

    def _server(self, path: str) -> MeasuredServer:
        idle = SPIN_ARGS if self.spin else QUIET_ARGS
        flags = ["--dtype", "float32", *self.kind.flags, *BEST_STOCK_ARGS, *idle]
        flags += ["--enable-prefill-only"] if path == EXTENSION else []
        env = {"OMP_NUM_THREADS": str(self.threads)}
        log = self.model.parent / f"{path}.log"
        return MeasuredServer(self.model, flags, env=env, log_path=log)

    def _placed(self, *servers: MeasuredServer) -> AbstractContextManager[None]:
        pids = [pid for server in servers for pid in server.pids]
        return scheduler_apart(pids) if self.apart else nullcontext()

    def _measure(self, port: int, path: str, repeat: int, requests: Requests) -> None:
        """Run all loops on a server; keep its answers if it is stock, else compare them."""
        bodies = [self._body(prompts) for prompts in requests]
        pool = [post_bytes(self.kind.path, body) for body in bodies]
        for count in self.clients:
            packed_before = packed_requests(port)
            window = Window(_ASK_S if self.by_wrk else self.seconds, 2 * count)
            seen = run_loop(closed_loop(port, pool, count, window))
            if path == STOCK:
                self._stock_answers |= seen.answers
            else:
                self.gate.check(self._stock_answers, seen.answers)
            sent = seen.sent
            if self.by_wrk:
                seen = wrk.closed_loop(port, self.kind.path, bodies, count, self.seconds)
                sent += seen.sent
            packed = packed_requests(port) - packed_before
            counted = self.prompts.count if self.kind.counts_prompts else 1
            self.results.append(
                result_of(
                    seen,
                    preset=self.model.name,
                    shape=str(self.prompts),
                    load=ClosedLoop(count),
                    path=path,
                    repeat=repeat,
                    items=self.prompts.count,
                    packed_share=packed / sent / counted,
                )
            )

    def _body(self, prompts: list[list[int]]) -> bytes:
        return json.dumps(self.kind.body(prompts, self.prompts.shared)).encode()

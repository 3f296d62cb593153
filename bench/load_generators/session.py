"""Measure stock and extension in turn, every wire under the load of its tool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tokenizers import Tokenizer

from bench.floor import operation_ratio
from bench.http_client import LoadError, post_bytes
from bench.load import Measurement, ask_each
from bench.load_generators import h2load, wrk
from bench.load_generators.servers import Target, running
from bench.load_generators.wires import (
    ENDPOINT,
    GRPC_METHOD,
    Wire,
    grpc_answers,
    grpc_messages,
    http_bodies,
)
from bench.record import Result
from bench.score.plan import EXTENSION, QUIET_ARGS, STOCK, server_flags
from bench.score.score_gate import ScoreGate
from bench.score.session import result_of
from bench.status import scheduled_requests
from bench.workloads import LABEL_IDS, ClosedLoop, ScoreRequest, Shape, draw_requests
from sglang_prefill_ext.sizing.model import ModelShape

_POOL = 64


@dataclass(frozen=True, slots=True)
class _Case:
    """The requests of one shape on one wire, for one start of a server."""

    path: str
    repeat: int
    shape: Shape
    wire: Wire
    pool: list[bytes]


@dataclass(slots=True)
class GeneratorRun:
    """All measurements on one model.

    Attributes:
        model: its directory, named after the preset.
        clients: numbers of clients of the closed loops.
        seconds: length of each measurement.
        front_ends: processes that serve gRPC.
    """

    model: Path
    shapes: Sequence[Shape]
    wires: Sequence[Wire]
    clients: Sequence[int]
    seconds: float
    front_ends: int
    gate: ScoreGate = field(default_factory=lambda: ScoreGate("float32"))
    results: list[Result] = field(default_factory=list)

    def measure(self, path: str, repeat: int) -> None:
        """Start a server and measure everything on it.

        Raises:
            ConfigError: a tool is not installed.
            GateError: stock and extension disagree; no figure may be shown then.
            LoadError: a server failed under load, or did not pack what it should have.
        """
        flags = [*QUIET_ARGS, *server_flags(path)]
        log = self.model.parent / f"{path}.log"
        attached = path == EXTENSION and Wire.GRPC in self.wires
        with running(self.model, flags, log, self.front_ends if attached else 0) as target:
            for case in self._cases(path, repeat):
                self._check(target, case)
                for each in self.clients:
                    self._measure(target, case, each)
                    # Once more behind the load, when the server has been through it.
                    self._check(target, case)

    def _cases(self, path: str, repeat: int) -> Iterator[_Case]:
        vocabulary = ModelShape.from_directory(self.model).vocabulary
        wires = {wire.of_stock for wire in self.wires} if path == STOCK else self.wires
        for shape in self.shapes:
            requests = draw_requests(shape, vocabulary, max(_POOL, *self.clients), seed=0)
            for wire in wires:
                yield _Case(path, repeat, shape, wire, self._pool(wire, requests))

    def _measure(self, target: Target, case: _Case, clients: int) -> None:
        packed_before, port = scheduled_requests(target.http), target.port(case.wire)
        if case.wire is Wire.GRPC:
            seen = h2load.closed_loop(port, GRPC_METHOD, case.pool, clients, self.seconds)
        else:
            seen = wrk.closed_loop(port, case.pool, clients, self.seconds)
        packed = scheduled_requests(target.http) - packed_before
        if case.path == EXTENSION:
            check_packed(case.wire, packed, seen.sent, clients)
        self._keep(case, ClosedLoop(clients), min(packed / seen.sent, 1.0), seen)

    def _pool(self, wire: Wire, requests: Sequence[ScoreRequest]) -> list[bytes]:
        if wire is Wire.GRPC:
            return grpc_messages(requests)
        tokenizer = Tokenizer.from_file(str(self.model / "tokenizer.json"))
        bodies = http_bodies(wire, requests, tokenizer.decode)
        return [post_bytes(ENDPOINT, body) for body in bodies]

    def _check(self, target: Target, case: _Case) -> None:
        """Get the answers to all requests; keep stock's, and compare the extension's with them."""
        ask = grpc_answers if case.wire is Wire.GRPC else ask_each
        answers = ask(target.port(case.wire), case.pool)
        asked = f"{case.shape} {case.wire.of_stock}"
        self.gate.hold(case.path, f"{case.shape} {case.wire}", asked, answers)

    def _keep(self, case: _Case, load: ClosedLoop, packed_share: float, seen: Measurement) -> None:
        """Record what was seen, of stock for every way that is compared with it."""
        sizes = ModelShape.from_directory(self.model)
        result = result_of(
            seen,
            preset=self.model.name,
            shape=str(case.shape),
            load=load,
            path=case.path,
            repeat=case.repeat,
            items=case.shape.items,
            packed_share=packed_share,
            operation_ratio=operation_ratio(sizes, case.shape, len(LABEL_IDS)),
        )
        compared = [each for each in self.wires if each.of_stock is case.wire]
        for each in compared if case.path == STOCK else [case.wire]:
            self.results.append(replace(result, load=f"{load}, {each}"))


def check_packed(wire: str, packed: int, sent: int, clients: int) -> None:
    """Check that all requests of a tool were packed.

    When the tool stops, each client may have a request under way, which only the server counts. So
    failures of as many requests may stay unseen.

    Args:
        packed: packed requests that the schedulers have answered meanwhile.
        sent: answers that the tool has seen, errors included.

    Raises:
        LoadError: some were not packed, or more were than the tool knows of, which could hide it.
    """
    if packed < sent:
        raise LoadError(f"{wire}: only {100 * packed // sent}% of the requests were packed")
    if packed > sent + clients:
        raise LoadError(f"{wire}: {packed:,} requests were packed, but only {sent:,} answered")

"""Stock and extension in turn, each way of sending under the load of its tool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from tokenizers import Tokenizer

from bench import load
from bench.floor import ModelShape, operation_ratio
from bench.http_client import LoadError, post_bytes
from bench.load import Measurement, Window, run_loop
from bench.load_generators import h2load, wrk
from bench.load_generators.servers import attachable_engine, engine
from bench.load_generators.wires import (
    GRPC_METHOD,
    Wire,
    answer_body,
    grpc_messages,
    http_bodies,
)
from bench.plan import BEST_STOCK_ARGS, EXTENSION, QUIET_ARGS, STOCK
from bench.record import Result
from bench.score_gate import ScoreGate
from bench.session import result_of
from bench.status import scheduled_requests
from bench.workloads import LABEL_IDS, ClosedLoop, ScoreRequest, Shape, draw_requests
from sglang_prefill_ext.grpc_frontend import prefill_pb2 as pb

_ENDPOINT = "/v1/score"
_POOL = 64
_CHECK_CLIENTS = 4


@dataclass(frozen=True, slots=True)
class WireLoop(ClosedLoop):
    """A closed loop, by what travels."""

    wire: Wire

    def __str__(self) -> str:
        return f"{ClosedLoop.__str__(self)}, {self.wire}"


@dataclass(frozen=True, slots=True)
class Target:
    """A running server.

    Attributes:
        http, grpc: ports; 0 where there are no gRPC front ends.
    """

    http: int
    grpc: int = 0


@dataclass(slots=True)
class GeneratorRun:
    """All measurements on one model.

    Attributes:
        model: its directory, named after the preset.
        clients: of each closed loop.
        seconds: length of each measurement.
        front_ends: processes that serve gRPC.
    """

    model: Path
    shapes: Sequence[Shape]
    wires: Sequence[Wire]
    clients: Sequence[int]
    seconds: float
    front_ends: int
    seed: int = 0
    gate: ScoreGate = field(default_factory=lambda: ScoreGate("float32"))
    results: list[Result] = field(default_factory=list)

    def measure(self, path: str, repeat: int) -> None:
        """Start a server and measure everything on it.

        Raises:
            ConfigError: a tool is not installed.
            GateError: stock and extension disagree; no figure may be shown then.
            LoadError: a server failed under load, or did not pack what it should have.
        """
        flags = ["--dtype", "float32", *BEST_STOCK_ARGS, *QUIET_ARGS]
        log = self.model.parent / f"{path}.log"
        if path == STOCK:
            with engine(self.model, flags, log) as server:
                self._measure_on(Target(server.port), path, repeat)
            return
        flags.append("--enable-prefill-only")
        if Wire.GRPC not in self.wires:
            with engine(self.model, flags, log) as server:
                self._measure_on(Target(server.port), path, repeat)
            return
        with attachable_engine(self.model, flags, log, self.front_ends) as (server, port):
            self._measure_on(Target(server.port, port), path, repeat)

    def _measure_on(self, target: Target, path: str, repeat: int) -> None:
        wires = {wire.of_stock for wire in self.wires} if path == STOCK else self.wires
        for shape in self.shapes:
            requests = self._requests(shape)
            for wire in wires:
                self._check(target, path, shape, wire, requests)
                for clients in self.clients:
                    packed_before = scheduled_requests(target.http)
                    seen = self._loop(target, wire, requests, clients)
                    share = (scheduled_requests(target.http) - packed_before) / seen.sent
                    if path == EXTENSION and share < 1:
                        raise LoadError(f"{wire}: only {share:.0%} of the requests were packed")
                    self._keep(path, repeat, shape, wire, clients, min(share, 1.0), seen)
                # Once more behind the load, when the server has been through it.
                self._check(target, path, shape, wire, requests)

    def _requests(self, shape: Shape) -> list[ScoreRequest]:
        vocabulary = ModelShape.from_directory(self.model).vocabulary
        return draw_requests(shape, vocabulary, max(_POOL, *self.clients), self.seed)

    def _bodies(self, wire: Wire, requests: Sequence[ScoreRequest]) -> list[bytes]:
        tokenizer = Tokenizer.from_file(str(self.model / "tokenizer.json"))
        return http_bodies(wire, requests, tokenizer.decode)

    def _loop(
        self, target: Target, wire: Wire, requests: Sequence[ScoreRequest], clients: int
    ) -> Measurement:
        if wire is Wire.GRPC:
            messages = grpc_messages(requests)
            return h2load.closed_loop(target.grpc, GRPC_METHOD, messages, clients, self.seconds)
        bodies = self._bodies(wire, requests)
        return wrk.closed_loop(target.http, _ENDPOINT, bodies, clients, self.seconds)

    def _check(
        self, target: Target, path: str, shape: Shape, wire: Wire, requests: Sequence[ScoreRequest]
    ) -> None:
        """Hold the answers to all requests against stock's, or keep these."""
        if wire is Wire.GRPC:
            answers = _grpc_answers(target.grpc, grpc_messages(requests))
        else:
            answers = _http_answers(target.http, self._bodies(wire, requests))
        asked = f"{shape} {wire.of_stock}"
        if path == STOCK:
            self.gate.keep(asked, answers)
        else:
            self.gate.check(f"{shape} {wire}", asked, answers)

    def _keep(
        self,
        path: str,
        repeat: int,
        shape: Shape,
        wire: Wire,
        clients: int,
        packed_share: float,
        seen: Measurement,
    ) -> None:
        """Record what was seen, of stock for every way that is compared with it."""
        sizes = ModelShape.from_directory(self.model)
        compared = [each for each in self.wires if each.of_stock is wire]
        for each in compared if path == STOCK else [wire]:
            self.results.append(
                result_of(
                    seen,
                    preset=self.model.name,
                    shape=str(shape),
                    load=WireLoop(clients, each),
                    path=path,
                    repeat=repeat,
                    items=shape.items,
                    packed_share=packed_share,
                    operation_ratio=operation_ratio(sizes, shape, len(LABEL_IDS)),
                )
            )


def _http_answers(port: int, bodies: Sequence[bytes]) -> Mapping[int, bytes]:
    pool = [post_bytes(_ENDPOINT, body) for body in bodies]
    window = Window(seconds=0.0, min_requests=2 * len(pool))
    return run_loop(load.closed_loop(port, pool, _CHECK_CLIENTS, window)).answers


def _grpc_answers(port: int, messages: Sequence[bytes]) -> Mapping[int, bytes]:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        score = channel.unary_unary(GRPC_METHOD, response_deserializer=pb.ScoreResponse.FromString)
        try:
            return {number: answer_body(score(each)) for number, each in enumerate(messages)}
        except grpc.RpcError as error:
            raise LoadError(f"gRPC: {error}") from error

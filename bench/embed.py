"""Embeddings of single prompts from many clients: ``python -m bench.embed``."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from bench.__main__ import RESULTS
from bench.command import begin, no_figures_on_error
from bench.floor import ModelShape
from bench.gate import TOLERANCE, GateError
from bench.http_client import KEEP_ALIVE_ENV, post_bytes
from bench.load import Measurement, Window, closed_loop, run_loop
from bench.plan import BEST_STOCK_ARGS, EXTENSION, PATHS, STOCK
from bench.plot import save_plot
from bench.record import Result, append
from bench.report import closed_table, compare_paths
from bench.session import packed_requests
from bench.workloads import ClosedLoop
from sglang_prefill_ext.local_server import LocalServer
from sglang_prefill_ext.modelmaker import make_model

_POOL_REQUESTS = 256
_FIRST_ID = 16  # the ids below may be special tokens


def draw_prompts(shortest: int, longest: int, vocabulary: int, seed: int) -> list[list[int]]:
    """Draw prompts of random ids whose lengths are evenly spread, both ends included."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(shortest, longest + 1, _POOL_REQUESTS)
    return [rng.integers(_FIRST_ID, vocabulary, length).tolist() for length in lengths]


@dataclass(slots=True)
class EmbeddingGate:
    """The extension's vectors against stock's; `largest` is the largest difference so far."""

    tolerance: float
    largest: float = 0.0
    compared: int = 0

    def check(self, stock: Mapping[int, bytes], extension: Mapping[int, bytes]) -> None:
        """Compare the answers to the requests that both servers answered, by request number.

        Raises:
            GateError: they differ, or none was answered by both.
        """
        for number in stock.keys() & extension.keys():
            ours, theirs = (_vector(each[number]) for each in (extension, stock))
            if ours.shape != theirs.shape:
                raise GateError(f"stock answered with {theirs.shape} numbers, not {ours.shape}")
            self.largest = float(np.maximum(self.largest, np.abs(ours - theirs).max()))
            self.compared += 1
        if not self.compared or not self.largest <= self.tolerance:
            raise GateError(f"embeddings: stock and extension disagree: {self}")


def _vector(body: bytes) -> np.ndarray:
    return np.array(json.loads(body)["data"][0]["embedding"])


@dataclass(slots=True)
class EmbedRun:
    """All measurements of one model.

    Attributes:
        model: its directory, named after the preset.
        shape: of the requests, as people read it.
        clients: of the closed loops.
        seconds: least length of each.
    """

    model: Path
    shape: str
    clients: list[int]
    seconds: float
    gate: EmbeddingGate = field(default_factory=lambda: EmbeddingGate(TOLERANCE["float32"]))
    results: list[Result] = field(default_factory=list)
    _stock_answers: dict[int, bytes] = field(default_factory=dict)

    def measure(self, path: str, repeat: int, prompts: list[list[int]]) -> None:
        """Start a server, run all loops, and hold its answers against stock's.

        Raises:
            GateError: they disagree; no figure may be shown then.
        """
        bodies = (json.dumps({"model": "m", "input": prompt}).encode() for prompt in prompts)
        pool = [post_bytes("/v1/embeddings", body) for body in bodies]
        flags = ["--dtype", "float32", "--is-embedding", *BEST_STOCK_ARGS]
        flags += ["--enable-prefill-only"] if path == EXTENSION else []
        log = self.model.parent / f"{path}.log"
        with LocalServer(self.model, flags, env=KEEP_ALIVE_ENV, log_path=log) as server:
            for count in self.clients:
                packed_before = packed_requests(server.port)
                window = Window(self.seconds, 2 * count)
                seen = run_loop(closed_loop(server.port, pool, count, window))
                packed = packed_requests(server.port) - packed_before
                if path == STOCK:
                    self._stock_answers |= seen.answers
                else:
                    self.gate.check(self._stock_answers, seen.answers)
                self.results.append(self._result(count, path, repeat, packed, seen))

    def _result(
        self, clients: int, path: str, repeat: int, packed: int, seen: Measurement
    ) -> Result:
        return Result(
            preset=self.model.name,
            shape=self.shape,
            load=str(ClosedLoop(clients)),
            closed=True,
            path=path,
            repeat=repeat,
            rate_per_s=None,
            requests=len(seen.latencies_s),
            packed_share=packed / seen.sent,
            seconds=seen.seconds,
            requests_per_s=seen.requests_per_s,
            items_per_s=seen.requests_per_s,
            p50_ms=seen.percentile_ms(50),
            p90_ms=seen.percentile_ms(90),
            p99_ms=seen.percentile_ms(99),
            generator_cpu_share=seen.generator_cpu_s / seen.seconds,
            operation_ratio=1.0,
        )


def main(
    preset: Annotated[str, typer.Option(help="Model of `make-model`.")] = "micro",
    clients: Annotated[list[int] | None, typer.Option(min=1, help="Repeatable.")] = None,
    shortest: Annotated[int, typer.Option(min=1, help="Tokens of a prompt, at least.")] = 8,
    longest: Annotated[int, typer.Option(min=1, help="Tokens of a prompt, at most.")] = 128,
    seconds: Annotated[float, typer.Option(help="Least seconds per measurement.")] = 6.0,
    alternations: Annotated[
        int, typer.Option(min=1, help="Starts of each server, in turn: A B A B.")
    ] = 2,
    seed: Annotated[int, typer.Option()] = 0,
    name: Annotated[str, typer.Option(help="File name in bench/results.")] = "embed",
) -> None:
    """Measure single embeddings a second, stock and extension in turn, the ratio first."""
    console, context = begin("bench.embed")
    with (
        no_figures_on_error(console),
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        console.status("") as status,
    ):
        model = Path(directory) / preset
        make_model(preset, model)
        vocabulary = ModelShape.from_directory(model).vocabulary
        prompts = draw_prompts(shortest, longest, vocabulary, seed)
        run = EmbedRun(model, f"1 x {shortest}-{longest}", clients or [1, 8, 32], seconds)
        for repeat in range(alternations):
            for path in PATHS:
                status.update(f"{preset}: start {repeat + 1} of {path}")
                run.measure(path, repeat, prompts)
    comparisons = compare_paths(run.results)
    gate = run.gate
    console.print(closed_table(comparisons))
    console.print(f"gate green: {gate.compared} embeddings, largest difference {gate.largest:.1e}")
    append(RESULTS / f"{name}.jsonl", run.results, {"gate": asdict(gate), **context})
    title = f"{context['machine']['cpu']}, commit {context['commit']}"
    save_plot(RESULTS / f"{name}.png", comparisons, title)
    console.print(f"written: {RESULTS / name}.jsonl, .png")


if __name__ == "__main__":
    typer.run(main)

"""What a run consists of, and its requests, prepared before any clock starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tokenizers import Tokenizer

from bench.floor import ModelShape, operation_ratio
from bench.gate import TOLERANCE
from bench.http_client import post_bytes
from bench.workloads import (
    LABEL_IDS,
    Load,
    Shape,
    closed_first,
    draw_requests,
    score_body,
)
from sglang_prefill_ext.errors import ConfigError

STOCK, EXTENSION = "stock", "extension"
PATHS = (STOCK, EXTENSION)

NO_CACHE = "--disable-radix-cache"
BEST_STOCK_ARGS = ("--enable-tokenizer-batch-encode", NO_CACHE)
"""Stock at its best for distinct prompts: one tokenizer call a request, no cache upkeep."""

SPIN_ARGS = ("--log-level-http", "warning")
"""Of both servers: idle schedulers look for work all the time, as SGLang's do by default."""

QUIET_ARGS = ("--sleep-on-idle", *SPIN_ARGS)
"""Of both servers: idle loops and a log line a request take the cores from what is measured."""

_ENDPOINT = "/v1/score"
_POOL_REQUESTS = 64
_GATE_REQUESTS = 4

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run on one model.

    Attributes:
        shapes, loads: every load is put on every shape.
        seconds: least length of one measurement.
        alternations: how often each of the two servers is started and measured, in turn.
        extension_args: what the second server gets beyond stock's flags.
        dtype: of the model in both servers; decides the gate's tolerance.
        text: send text instead of token ids.
        seed: of requests and arrivals.
        stock_args: what the first one gets; empty unless two extension servers are compared.
        stock_env: environment of the first one, where it is another release.
        args_of_both: what both get beside the benchmark's own.
        radix_cache: leave SGLang's prefix cache on in both. Requests come again after
            `_POOL_REQUESTS`, and stock then has them whole.
        side_by_side: start each server once, and stop it while the other is measured.

    Raises:
        ConfigError: an unknown dtype, or a load relative to a closed loop that is not there.
    """

    shapes: tuple[Shape, ...]
    loads: tuple[Load, ...]
    seconds: float
    alternations: int
    extension_args: tuple[str, ...]
    dtype: str = "float32"
    text: bool = False
    seed: int = 0
    stock_args: tuple[str, ...] = ()
    stock_env: Mapping[str, str] = field(default_factory=dict)
    args_of_both: tuple[str, ...] = ()
    radix_cache: bool = False
    side_by_side: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in TOLERANCE:
            raise ConfigError(f"dtype {self.dtype!r}: use one of {', '.join(TOLERANCE)}.")
        self.ordered_loads()

    def ordered_loads(self) -> list[Load]:
        """In the order in which they are put on a server."""
        return closed_first(self.loads)

    def server_env(self, path: str) -> dict[str, str]:
        """Environment variables of the stock or the extension server, beyond the launcher's own."""
        return dict(self.stock_env) if path == STOCK else {}

    def server_args(self, path: str) -> list[str]:
        """Flags of the stock or the extension server, beyond the launcher's own."""
        extra = self.extension_args if path == EXTENSION else self.stock_args
        best = [arg for arg in BEST_STOCK_ARGS if not (self.radix_cache and arg == NO_CACHE)]
        return ["--dtype", self.dtype, *best, *self.args_of_both, *extra]


@dataclass(frozen=True, slots=True)
class Case:
    """The prepared requests of one shape.

    Attributes:
        shape: of every request.
        operation_ratio: stock's arithmetic per operation of the packed forward.
        pool: HTTP requests that are timed.
        gate: HTTP requests, others, that ask for log-probabilities as well; never timed.
    """

    shape: Shape
    operation_ratio: float
    pool: list[bytes]
    gate: list[bytes]


def make_cases(
    model: Path, shapes: Iterable[Shape], *, text: bool = False, seed: int = 0
) -> list[Case]:
    """Prepare the requests of every shape for the model in a directory.

    Args:
        text: send text instead of token ids.
    """
    sizes = ModelShape.from_directory(model)
    decode = _decoder(model) if text else None
    return [_make_case(shape, sizes, seed, decode) for shape in shapes]


def _make_case(
    shape: Shape, sizes: ModelShape, seed: int, decode: Callable[[Sequence[int]], str] | None
) -> Case:
    drawn = draw_requests(shape, sizes.vocabulary, _POOL_REQUESTS + _GATE_REQUESTS, seed)
    timed, checked = drawn[:_POOL_REQUESTS], drawn[_POOL_REQUESTS:]
    return Case(
        shape,
        operation_ratio(sizes, shape, len(LABEL_IDS)),
        [post_bytes(_ENDPOINT, score_body(request, decode)) for request in timed],
        [post_bytes(_ENDPOINT, score_body(one, decode, token_logprobs=True)) for one in checked],
    )


def _decoder(model: Path) -> Callable[[Sequence[int]], str]:
    decode: Callable[[Sequence[int]], str] = Tokenizer.from_file(
        str(model / "tokenizer.json")
    ).decode
    return decode


def alternating(subjects: Sequence[T], turns: int) -> Iterator[tuple[int, T]]:
    """Number each turn and yield every subject in it, every other time in the opposite order.

    So what else the machine does meets all of them alike.
    """
    for turn in range(turns):
        for subject in subjects[:: -1 if turn % 2 else 1]:
            yield turn, subject

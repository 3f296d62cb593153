"""The plan of a run, and its requests, which are prepared before any measurement starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from tokenizers import Tokenizer

from bench.floor import operation_ratio
from bench.gate import TOLERANCE
from bench.http_client import post_bytes
from bench.workloads import LABEL_IDS, Load, Shape, closed_first, draw_requests, score_body
from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.sizing.model import ModelShape

STOCK, EXTENSION = "stock", "extension"
PATHS = (STOCK, EXTENSION)

NO_CACHE = "--disable-radix-cache"
BEST_STOCK_ARGS = ("--enable-tokenizer-batch-encode", NO_CACHE)
"""One tokenizer call per request, and no upkeep of the prefix cache. So stock is fastest where
Python takes the time; where the model does, its cache may help, see `Plan.radix_cache`."""

QUIET_ARGS = ("--sleep-on-idle", "--log-level-http", "warning")
"""Flags of both servers: idle schedulers sleep, and requests are not logged. Polling and logging
would take the cores from what is measured."""

_ENDPOINT = "/v1/score"
POOL_REQUESTS, FEW_REQUESTS, MANY_REQUESTS = 64, 8, 2048
"""Different requests of a shape: usually, so that they return soon, and so that none does."""

GATE_REQUESTS = 4

T = TypeVar("T")


def server_flags(path: str, *own: str, dtype: str = "float32") -> list[str]:
    """Flags of a server: those of stock at its best; the extension has its `own`, too."""
    flags = ["--dtype", dtype, *BEST_STOCK_ARGS]
    return flags if path == STOCK else [*flags, "--enable-prefill-only", *own]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run on one model.

    Attributes:
        loads: under which every case is measured.
        seconds: least length of one measurement.
        alternations: how often each of the two servers is started and measured, in turn.
        extension_args: further flags of the second server.
        dtype: of the model in both servers; decides the gate's tolerance.
        stock_args: further flags of the first server; empty unless two extension servers are
            compared.
        stock_env: environment of the first server if it is another release.
        args_of_both: further flags of both servers, besides the benchmark's own.
        env_of_both: environment of both servers.
        radix_cache: leave SGLang's prefix cache on in both; it is empty when a measurement begins.
        repeated: with the cache, send few requests over and over; without this, a request that
            repeats would be in the cache as a whole, so a measurement that repeats one fails.
        side_by_side: start each server once, and pause it while the other is measured.
        by_wrk: wrk makes the measured load, so that Python takes no CPU time from it; a short loop
            before it collects the answers that are compared. Only for closed loops.

    Raises:
        ConfigError: the dtype is unknown, or a load is relative to the rate of a closed loop and
            there is no closed loop.
    """

    loads: tuple[Load, ...]
    seconds: float
    alternations: int
    extension_args: tuple[str, ...]
    dtype: str = "float32"
    stock_args: tuple[str, ...] = ()
    stock_env: Mapping[str, str] = field(default_factory=dict)
    args_of_both: tuple[str, ...] = ()
    env_of_both: Mapping[str, str] = field(default_factory=dict)
    radix_cache: bool = False
    repeated: bool = False
    side_by_side: bool = False
    by_wrk: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in TOLERANCE:
            raise ConfigError(f"dtype {self.dtype!r}: use one of {', '.join(TOLERANCE)}.")
        self.ordered_loads()

    def ordered_loads(self) -> list[Load]:
        """The loads in the order in which a server gets them."""
        return closed_first(self.loads)

    def pool_requests(self, usual: int = POOL_REQUESTS) -> int:
        """How many different requests of each shape to prepare.

        Args:
            usual: without a prefix cache.
        """
        if self.repeated:
            return FEW_REQUESTS
        return MANY_REQUESTS if self.radix_cache else usual

    def server_args(self, path: str) -> list[str]:
        """Flags of the stock or the extension server, beyond the launcher's own."""
        extra = self.extension_args if path == EXTENSION else self.stock_args
        best = [arg for arg in BEST_STOCK_ARGS if not (self.radix_cache and arg == NO_CACHE)]
        return ["--dtype", self.dtype, *best, *self.args_of_both, *extra]


class Sized(Protocol):
    """The shape of requests; its text is what results call it."""

    @property
    def items(self) -> int:
        """Items, or prompts, of a request."""


@dataclass(frozen=True, slots=True)
class Case:
    """The prepared requests of one shape.

    Attributes:
        shape: of every request.
        operation_ratio: stock's arithmetic per operation of the packed forward.
        pool: HTTP requests that are timed.
        gate: other HTTP requests, never timed; those for scores also ask for log-probabilities.
        counted: how many packed requests the server counts for each.
    """

    shape: Sized
    operation_ratio: float
    pool: list[bytes]
    gate: list[bytes]
    counted: int = 1


def make_cases(
    model: Path, shapes: Iterable[Shape], *, text: bool = False, count: int = POOL_REQUESTS
) -> list[Case]:
    """Prepare the requests of every shape for the model in a directory.

    Args:
        text: send text instead of token ids.
        count: how many different ones.
    """
    sizes = ModelShape.from_directory(model)
    decode = Tokenizer.from_file(str(model / "tokenizer.json")).decode if text else None
    cases = []
    for shape in shapes:
        drawn = draw_requests(shape, sizes.vocabulary, count + GATE_REQUESTS, seed=0)
        timed = [score_body(each, decode) for each in drawn[:count]]
        others = drawn[count:]
        checked = [score_body(each, decode, token_logprobs=True) for each in others]
        ratio = operation_ratio(sizes, shape, len(LABEL_IDS))
        pool, gate = ([post_bytes(_ENDPOINT, body) for body in each] for each in (timed, checked))
        cases.append(Case(shape, ratio, pool, gate))
    return cases


def alternating(subjects: Sequence[T], turns: int) -> Iterator[tuple[int, T]]:
    """Yield every subject in each of `turns` numbered turns; every other turn in reverse order.

    So other load on the machine affects all subjects alike.
    """
    for turn in range(turns):
        for subject in subjects[:: -1 if turn % 2 else 1]:
            yield turn, subject

"""The messages between an attached front end and the engine over ZMQ, as msgpack.

::

    front end                               engine
    Hello        ──────────────────────►
                 ◄──────────────────────    Facts, or Refusal
    Rows, Abort  ──────────────────────►
                 ◄──────────────────────    RowsAnswer
    StockScore, StockVectors, Abort ───►
                 ◄──────────────────────    StockAnswer, or StockError
    Beat         ──────────────────────►    every `BEAT_S`
                 ◄──────────────────────    GcCall
    GcAnswer     ──────────────────────►
                 ◄──────────────────────    Knock, or Leaving in a shutdown, every `BEAT_S`
                 ◄──────────────────────    Farewell, when the engine goes

Messages that leave at the same time are the parts of one ZMQ message (see `Mailbox`).

The engine refuses a front end of another version, so fields may change from release to release,
except those of `Hello` and `Refusal`.
"""

from __future__ import annotations

from typing import Any, TypeAlias, get_args

import msgspec

from sglang_prefill_ext import __version__
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.process.collector import GcAction, GcReport
from sglang_prefill_ext.wire.arrays import EmbeddingKind
from sglang_prefill_ext.wire.packed import PackedResult
from sglang_prefill_ext.wire.status import Status
from sglang_prefill_ext.wire.stock_reason import StockReason

PROTOCOL = 1
BEAT_S = 1.0
"""How often a front end shows that it lives, and the engine looks whether it is there."""


class Hello(msgspec.Struct, tag=True, frozen=True):
    protocol: int = PROTOCOL
    version: str = __version__
    pid: int = 0


class Facts(msgspec.Struct, tag=True, frozen=True):
    """What a front end has to know of the engine.

    Attributes:
        vocab_size: rows of the embedding table; prompt ids must lie below.
        embeddings: width and dtype of the model's, which those of calls have to fit.
        label_vocab_size: label ids must lie below.
        longest_prompt, longest_packed: see `SchedulerLink`.
        is_generation: whether the model generates; else it makes vectors.
        class_names: of a classification model, by class.
        caching: whether SGLang keeps a prefix cache.
        tokenizer: JSON of the engine's fast tokenizer; empty where it has none.
        probes: texts, with the ids that the engine makes of them.
        declined: why no call of this engine is packed; None if calls are packed.
        gc_thresholds: to set with a freeze, see `gc.set_threshold`; None leaves Python's.
    """

    model: str
    sglang_version: str
    vocab_size: int
    embeddings: EmbeddingKind
    label_vocab_size: int
    longest_prompt: int
    longest_packed: int
    is_generation: bool
    class_names: list[str]
    caching: bool
    config: PrefillOnlyConfig
    tokenizer: str
    probes: dict[str, list[int]]
    declined: StockReason | None = None
    gc_thresholds: list[int] | None = None


class Refusal(msgspec.Struct, tag=True, frozen=True):
    message: str


class Rows(msgspec.Struct, tag=True, frozen=True):
    """A packed request, with the name of its adapter, which the engine replaces by the id."""

    rid: str
    row_bytes: bytes
    options: RequestOptions


class RowsAnswer(msgspec.Struct, tag=True, frozen=True):
    rid: str
    result: PackedResult


class StockScore(msgspec.Struct, tag=True, frozen=True):
    """A scoring call for the engine's own `score_request`; headers are as they come by HTTP."""

    rid: str
    arguments: dict[str, Any]
    headers: dict[str, str]


class StockVectors(msgspec.Struct, tag=True, frozen=True):
    """A call for vectors for the engine's own `generate_request`; `adapter` is a name or empty."""

    rid: str
    prompts: list[Any]
    dimensions: int | None
    adapter: str
    headers: dict[str, str]


class StockAnswer(msgspec.Struct, tag=True, frozen=True):
    """Scores or vectors, one list a row; `token_logprobs` where they were asked for."""

    rid: str
    rows: list[list[float]]
    prompt_tokens: int
    token_logprobs: list[list[float]] | None = None


class StockError(msgspec.Struct, tag=True, frozen=True):
    """The engine refused a call or failed at it.

    Attributes:
        field: the field of the call that is wrong; empty if none is named.
    """

    rid: str
    status: Status
    message: str
    retry_after_s: float = 0.0
    field: str = ""


class Abort(msgspec.Struct, tag=True, frozen=True):
    rid: str


class Beat(msgspec.Struct, tag=True, frozen=True):
    """Counts since the last beat (see `FrontendMetrics`), and the name of what encodes texts."""

    in_flight: int = 0
    requests: dict[str, int] = {}
    totals: dict[str, int] = {}
    encoder: str = ""


class GcCall(msgspec.Struct, tag=True, frozen=True):
    """Act on the garbage collection of the front end's process (see `Collector.perform`)."""

    rid: str
    action: GcAction
    thresholds: list[int] | None = None


class GcAnswer(msgspec.Struct, tag=True, frozen=True):
    rid: str
    report: GcReport


class Knock(msgspec.Struct, tag=True, frozen=True):
    """Needs no answer: if it can be sent, the connection of the front end is still there."""


class Leaving(msgspec.Struct, tag=True, frozen=True):
    """The engine answers the calls that it has, and then ends."""


class Farewell(msgspec.Struct, tag=True, frozen=True):
    pass


Stock: TypeAlias = StockScore | StockVectors
Call: TypeAlias = Rows | Stock
Tidings: TypeAlias = Abort | Beat | GcAnswer
FromFrontend: TypeAlias = Hello | Call | Tidings
Answer: TypeAlias = RowsAnswer | StockAnswer | StockError
FromEngine: TypeAlias = Facts | Refusal | Answer | GcCall | Knock | Leaving | Farewell

encode = msgspec.msgpack.Encoder().encode
decode_from_frontend = msgspec.msgpack.Decoder(FromFrontend).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode


class Heading(msgspec.Struct, frozen=True):
    """The type and the call id of a message that cannot be read as a whole; empty if unknown."""

    type: str = ""
    rid: str = ""

    @property
    def is_call(self) -> bool:
        return self.type in _CALLS

    @property
    def is_known(self) -> bool:
        """Whether its type is one that a front end sends after its hello."""
        return self.is_call or self.type in _TIDINGS


_CALLS = frozenset(kind.__name__ for kind in get_args(Call))
_TIDINGS = frozenset(kind.__name__ for kind in get_args(Tidings))
_decode_heading = msgspec.msgpack.Decoder(Heading).decode


def heading_of(body: bytes) -> Heading:
    """Read the heading of a message that cannot be read as a whole, or cannot be served."""
    try:
        return _decode_heading(body)
    except (msgspec.DecodeError, RecursionError):
        return Heading()


def failure_of(call: Heading, why: str) -> RowsAnswer | StockError:
    """The answer that tells a call that it failed."""
    if call.type == Rows.__name__:
        return RowsAnswer(call.rid, PackedResult(Status.FAILED, why))
    return StockError(call.rid, Status.FAILED, why)

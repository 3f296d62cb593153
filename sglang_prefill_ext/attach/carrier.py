"""The messages between a router and an engine over HTTP, as msgpack.

::

    GET  /prefill_only/facts?known=..&tokenizer=..    EngineState
    POST /prefill_only/rows                           bytes of rows; answered with PartAnswer
    POST /prefill_only/calls                          `Stock`; answered with StockAnswer, StockError

A router names the offer and the tokenizer that it knows, which it does not need again.
The options of rows are in the same headers as those of a scoring request. A deadline is sent as the
time that is left, so the clocks of two hosts need not agree. A router aborts a request by dropping
its connection.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from sglang_prefill_ext import __version__
from sglang_prefill_ext.attach.messages import Facts, Stock, StockAnswer, StockError
from sglang_prefill_ext.errors import EngineUnavailableError, PackingError, PrefillExtError
from sglang_prefill_ext.frontend.packed_path import EncoderTraits
from sglang_prefill_ext.frontend.score.rerank import Reranking
from sglang_prefill_ext.wire.packed import PackedResult

FACTS_PATH = "/prefill_only/facts"
ROWS_PATH = "/prefill_only/rows"
CALLS_PATH = "/prefill_only/calls"
MSGPACK = "application/msgpack"


class Offer(msgspec.Struct, frozen=True):
    """What an engine tells of itself that does not change, unless an operator changes it.

    Attributes:
        facts: without the tokenizer, which has many MB, if the router knows it.
        tokenizer_digest: names the tokenizer.
        served_name: name of the model in answers of OpenAI's routes.
        model_path: name of the model in answers of `/v1/embeddings`.
        settings: flags of SGLang that change numbers or answers, and the version of the weights;
            all engines of a fleet must have the same.
        encoder: None if the model is no encoder.
        reranking: None if the model is no decoder reranker.
        shows_times: answers of SGLang's own routes tell how long each of their steps took.
        pair_tokens: operations of one attention pair, divided by those of one token; 0 if unknown.
    """

    facts: Facts
    tokenizer_digest: str
    served_name: str
    model_path: str
    settings: dict[str, str]
    encoder: EncoderTraits | None = None
    reranking: Reranking | None = None
    shows_times: bool = False
    pair_tokens: float = 0.0


class EngineState(msgspec.Struct, frozen=True):
    """The state of an engine now.

    Attributes:
        fingerprint: of the offer.
        offer: None if the router knows it.
        schedulers: their parts of the status page; empty if they have not answered for long.
        late: these are some seconds old, as a scheduler is in a long forward.
        tokens: of the packed requests of this process that are under way.
        leaving: it answers these, and then ends.
        paused: an operator has paused it, so requests wait there.
        since_s: since when the offer has been this one, Unix time.
    """

    fingerprint: str
    offer: Offer | None
    schedulers: list[dict[str, Any]]
    late: bool
    tokens: int
    leaving: bool = False
    paused: bool = False
    since_s: float = 0.0
    version: str = __version__

    @property
    def outstanding_tokens(self) -> int:
        """Tokens of packed requests that the engine has yet to compute.

        The larger of two counts: that of this process, and that of the schedulers.
        """
        return max(self.tokens, sum(int(each["queue"]["tokens"]) for each in self.schedulers))


class PartAnswer(msgspec.Struct, frozen=True):
    """The answer to rows.

    Attributes:
        tokens: as in `EngineState`.
        weights: names the weights that the engine has now; parts of other weights do not fit.
    """

    result: PackedResult
    tokens: int = 0
    weights: str = ""


class _Versioned(msgspec.Struct, frozen=True):
    version: str = ""


encode = msgspec.msgpack.Encoder().encode
_decode_version = msgspec.msgpack.Decoder(_Versioned).decode
_decode_state = msgspec.msgpack.Decoder(EngineState).decode


def digest_of(text: str) -> str:
    """Return what tells a text from others in an offer."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def with_tokenizer(offer: Offer, tokenizer: str) -> Offer:
    return replace(offer, facts=replace(offer.facts, tokenizer=tokenizer))


def fingerprint_of(offer: Offer) -> str:
    """Return what tells an offer from others; its tokenizer counts by the digest."""
    return hashlib.sha256(encode(with_tokenizer(offer, ""))).hexdigest()


def state_from(body: bytes) -> EngineState:
    """Read what an engine tells of itself.

    Raises:
        EngineUnavailableError: it is no engine of this version.
    """
    try:
        version = _decode_version(body).version
        if version == __version__:
            return _decode_state(body)
        why = f"its version is {version!r:.40}, this one's {__version__}. Install the same"
    except (msgspec.DecodeError, RecursionError) as error:
        why = f"what it tells of itself cannot be read ({error})"
    raise EngineUnavailableError(f"It cannot be used: {why}.")


def _reader(kind: Any, error: type[PrefillExtError], text: str) -> Callable[[bytes], Any]:
    """Return what decodes messages of a kind, or raises the error, whose text has the reason."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def read(body: bytes) -> Any:
        try:
            return decode(body)
        except (msgspec.DecodeError, RecursionError) as reason:
            raise error(text.format(reason)) from reason

    return read


call_from: Callable[[bytes], Stock] = _reader(Stock, PackingError, "a call cannot be read ({})")

_UNREAD = EngineUnavailableError, "An answer cannot be read ({})."
answer_from: Callable[[bytes], PartAnswer] = _reader(PartAnswer, *_UNREAD)
call_answer_from: Callable[[bytes], StockAnswer | StockError] = _reader(
    StockAnswer | StockError, *_UNREAD
)

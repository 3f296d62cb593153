"""Stand-ins for an engine behind the broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from sglang_prefill_ext.attach.broker import Broker
from sglang_prefill_ext.attach.connection import EngineConnection
from sglang_prefill_ext.attach.messages import Beat, Facts, Stock, StockAnswer, StockError
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.frontend.exchange import PackedExchange
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.metrics.pauses import PauseRecorder
from sglang_prefill_ext.process.collector import Collector, GcAction, GcReport
from sglang_prefill_ext.wire.arrays import EmbeddingKind
from sglang_prefill_ext.wire.checks import wrong
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows
from tests.unit.frontend.links import StubLink, answer_at_once, stub_answer

VOCABULARY = 100
STATUS = {
    "launch_tokens": 10,
    "busy_s": 1.0,
    "calibrated_tokens_per_s": 9_000.0,
    "forward_budget": {"max_tokens": 16384},
    "counters": {"tokens_computed": 10_000, "forwards": 10},
    "queue": {"tokens": 0},
}
"""What a scheduler tells of itself on the status page."""

WORDS = {"a": 1, "b": 2, "c": 3, "[UNK]": 0}


def word_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(WordLevel(WORDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    return tokenizer


def facts(**changes: object) -> Facts:
    known: dict[str, object] = {
        "model": "stub",
        "sglang_version": "0",
        "vocab_size": VOCABULARY,
        "embeddings": EmbeddingKind(8, "float32"),
        "label_vocab_size": VOCABULARY,
        "longest_prompt": 1000,
        "longest_packed": 1000,
        "is_generation": True,
        "class_names": ["no", "yes"],
        "caching": False,
        "config": PrefillOnlyConfig(max_items=5),
        "tokenizer": word_tokenizer().to_str(),
        "probes": {"a b x": [1, 2, 0]},
    }
    return Facts(**(known | changes))  # type: ignore[arg-type]


class StubCollector(Collector):
    """Reports, but does not touch the garbage collection of the tests."""

    def __init__(self) -> None:
        self.asked: list[tuple[GcAction, bool]] = []
        self._rid = ""

    def perform(
        self,
        action: GcAction,
        rid: str,
        *,
        thresholds: Sequence[int] | None = None,
        busy: bool = False,
    ) -> GcReport:
        if rid != self._rid:
            self.asked.append((action, busy))
        self._rid = rid
        pauses = PauseRecorder().summary()
        return GcReport(1, "stub", [0, 0, 0], 0, [0, 0, 0], 0, list(thresholds or []), pauses)

    def show_pauses(self) -> None:
        pass


class StubEngine:
    """Answers packed requests with zeros, unless it is `silent`, and stock calls as told."""

    def __init__(self, known: Facts | None = None, *, silent: bool = False) -> None:
        self.link = StubLink()
        self.exchange = PackedExchange(self.link, max_row_tokens=1000)
        self.known = known or facts()
        self.metrics = FrontendMetrics()
        self.stock_calls: list[Stock] = []
        self.stock_outcome: StockAnswer | StockError | None = None
        self.abandoned = 0
        self.acquired: list[str] = []
        self.released: list[str] = []
        self.width = 3
        self.told = 0
        self.leaving = False
        self.timeout_ms = 0
        if not silent:
            answer_at_once(self.link, self.exchange, self.answer)

    def answer(self, rows: PackedRows) -> PackedResult:
        """An answer of zeros, one for each value."""
        count = rows.read.of_width(self.width, 0).num_values(rows.num_reads)
        return stub_answer(values=[0.0] * count, tokens_cached=1)

    def fall_silent(self) -> None:
        """Stop answering packed requests."""
        self.link.on_send = lambda rid, rows: None

    def facts(self) -> Facts:
        self.told += 1
        return self.known

    async def serve_rows(self, rows: PackedRows, options: RequestOptions) -> PackedResult:
        async with self.exchange.admitted(options):
            return await self.exchange.round_trip(rows, options, None)

    def count(self, beat: Beat) -> None:
        self.metrics.add(beat.requests, beat.totals)

    @asynccontextmanager
    async def adapter(self, name: str, options: RequestOptions) -> AsyncIterator[str]:
        """There is one adapter, `tuned`."""
        if not name:
            yield ""
            return
        if name != "tuned":
            raise wrong("adapter", f"no {name!r}")
        self.acquired.append(name)
        try:
            yield f"id-of-{name}"
        finally:
            self.released.append(name)

    async def serve_stock(self, call: Stock) -> StockAnswer | StockError:
        self.stock_calls.append(call)
        if self.stock_outcome is None:
            try:
                await asyncio.Event().wait()
            finally:
                self.abandoned += 1
        outcome = self.stock_outcome
        assert outcome is not None
        return msgspec.structs.replace(outcome, rid=call.rid)


@asynccontextmanager
async def attached(
    engine: StubEngine, path: Path
) -> AsyncIterator[tuple[Broker, EngineConnection, FrontendMetrics]]:
    """A broker and a front end that is attached to it, over a real socket."""
    broker, metrics = Broker(engine, path), FrontendMetrics()
    connection = EngineConnection(path, metrics, StubCollector())
    async with broker.running(), connection.running():
        assert await connection.wait_attached(60)
        yield broker, connection, metrics

"""The packed work of one scheduler: its step in an iteration, its metrics, and its answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import asdict
from typing import Any, NamedTuple

from sglang.srt.runtime_context import get_parallel

from sglang_prefill_ext.border.messages import PackedRowsResults
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.forward.expert_blocks import ExpertUse
from sglang_prefill_ext.forward.graphs.plan import GraphUse
from sglang_prefill_ext.metrics import SchedulerMetrics
from sglang_prefill_ext.process.collector import Collector
from sglang_prefill_ext.scheduling.job import Job
from sglang_prefill_ext.scheduling.policy import IterationPolicy, SchedulingPolicy
from sglang_prefill_ext.scheduling.runtime import Ended, PackedRuntime
from sglang_prefill_ext.scheduling.stats import Accounts
from sglang_prefill_ext.shared_device.board import Board
from sglang_prefill_ext.startup.answer_check import AnswerCheck

GRAPH_SPEEDUP = 4
"""How many times faster a decode step is as a CUDA graph than launched kernel by kernel: an
estimate for small models, where launches take the host longer than kernels take the device."""

_TICK_MS = 20.0
"""Interval in which the deadlines of queued requests are checked."""


class RuntimeSetup(NamedTuple):
    """The packed path as it is when the scheduler starts serving.

    Attributes:
        graphs: use of graphs for small forwards.
        experts: how blocks for MoE experts are chosen, in stock batches, too.
        widths: `Model.vector_width` and `Model.state_width`; None if packed requests are declined.
        check: result for the known prompts; None if they were not asked.
        tokens_per_s: see `Calibration`; 0 if packed requests are declined.
        after_update: to be called when weights may have been updated.
        is_short: see `Room`.
    """

    runtime: PackedRuntime
    graphs: GraphUse
    experts: ExpertUse
    widths: tuple[int, int] | None = None
    check: AnswerCheck | None = None
    tokens_per_s: float = 0.0
    after_update: Callable[[], None] = lambda: None
    is_short: Callable[[], bool] = lambda: False


class PackedWork:
    """All parts of the packed path in one scheduler, as the flags ask for it."""

    def __init__(
        self, scheduler: Any, setup: RuntimeSetup, config: PrefillOnlyConfig, collector: Collector
    ) -> None:
        self.setup = setup
        self.runtime = setup.runtime
        policy = setup.runtime.policy
        self.policy = IterationPolicy(
            step_tokens=config.decode_step_tokens or _step_tokens(scheduler, policy),
            slowdown=config.decode_slowdown,
            launch_tokens=policy.launch_tokens,
            max_wait_steps=config.max_wait_steps,
        )
        shown = scheduler.metrics_collector_context.current_scheduler_metrics_enabled
        stock: Any = scheduler.metrics_collector if shown else None
        self.metrics = SchedulerMetrics(stock.labels) if shown else None
        self.stock_metrics = stock
        self.collector = collector
        self.accounts = Accounts()
        self._tokens_shown = 0, 0
        self._last_look_ms = 0.0
        self._holders: Set[Job] = frozenset()

    def step(self, *, decoding: bool, beside_stock: bool = False) -> bool:
        """Take one step of the runtime; the policy says whether it may launch a forward.

        Args:
            beside_stock: there are stock requests, which would go first if a forward waited.
        """
        join_tokens = self.policy.join_tokens(self.runtime.next_tokens, decoding=decoding)
        launch = join_tokens is not None and (beside_stock or not self.runtime.may_wait)
        moved = self.runtime.step(launch=launch, join_tokens=join_tokens or 0)
        if moved:
            self.show_queue()
        return moved

    def make_room(self) -> None:
        """Collect the forwards in flight if slots are short: SGLang would take back generations,
        and end the last one, that find no slot for their next token."""
        if self.runtime.in_flight and self.setup.is_short():
            self.collect()

    def collect(self) -> None:
        """Wait for the forwards in flight and answer their requests."""
        if self.runtime.collect():
            self.show_queue()

    def has_given_room(self) -> bool:
        """Whether a request no longer holds the K/V that it held when this was asked last."""
        before, self._holders = self._holders, self.runtime.holders
        return not before <= self._holders

    def record_iteration(self, computed_before: int, stock_batch: Any) -> None:
        """Count an iteration in `accounts`; before it, so many packed tokens were computed."""
        stock_tokens = 0
        if stock_batch is not None:  # a prefill batch has prompt tokens, others one per request
            prompts = stock_batch.forward_mode.is_extend()
            stock_tokens = stock_batch.extend_num_tokens if prompts else stock_batch.batch_size()
        packed_tokens = self.runtime.stats.tokens_computed - computed_before
        self.accounts.record(packed_tokens, int(stock_tokens))

    def is_late(self, now_ms: float, arriving: Iterable[float]) -> bool:
        """Whether to end a request whose deadline (Unix time in ms) is queued, or is `arriving`."""
        if any(deadline < now_ms for deadline in arriving):
            return True
        if 0 <= now_ms - self._last_look_ms < _TICK_MS:  # < 0: the clock was set back
            return False
        self._last_look_ms = now_ms
        return self.runtime.overdue(now_ms)

    @property
    def queue(self) -> dict[str, float]:
        """The size of the queue: requests, tokens, rows, bytes, and the oldest one's wait in s."""
        return {
            "requests": len(self.runtime.queue),
            **asdict(self.runtime.queue.load),
            "oldest_wait_s": self.runtime.queue.oldest_wait_s,
        }

    def show_queue(self) -> None:
        """Bring the metrics up to date, those of SGLang that count tokens, too."""
        if self.metrics is None:
            return
        if self.collector.pauses.new:
            self.collector.show_pauses()
        stats = self.runtime.stats
        self.metrics.update(self.queue, stats.retried_forwards, self.setup.graphs.forwards)
        if self.setup.experts.groups:
            self.metrics.show_experts(self.setup.experts.balance)
        tokens, shown = (stats.tokens_computed, stats.tokens_cached), self._tokens_shown
        more = (tokens[0] - shown[0], tokens[1] - shown[1])
        self._tokens_shown = tokens
        self.stock_metrics.increment_realtime_tokens(None, *more)
        self.stock_metrics.increment_effective_prefill_tokens(*more, 0, 0)


def _step_tokens(scheduler: Any, policy: SchedulingPolicy) -> int:
    """Estimate the cost of a decode step by that of launching a packed forward.

    Both are mostly the time that the host needs to launch a model's kernels, unless a CUDA graph
    replays them.
    """
    replayed = scheduler.tp_worker.model_runner.decode_cuda_graph_captured
    eager_tokens = policy.graphs.eager_tokens
    if not eager_tokens:
        return max(1, policy.launch_tokens // GRAPH_SPEEDUP if replayed else policy.launch_tokens)
    return policy.launch_tokens if replayed else eager_tokens


def answering(scheduler: Any, board: Board | None) -> Callable[[Sequence[Ended]], None]:
    """Return a function that sends the results of requests that end together.

    Args:
        board: on which it counts the answered tokens; None for a single scheduler on the device.
    """
    sender, rank = scheduler.ipc_channels.send_to_tokenizer, get_parallel().dp_rank or 0

    def answer(ended: Sequence[Ended]) -> None:
        if board is not None:  # first, as whoever gets an answer may ask again at once
            board.done[rank] += tokens_received(ended)
        for message in result_messages(ended):
            sender.send_output(message)

    return answer


def result_messages(ended: Sequence[Ended]) -> list[PackedRowsResults]:
    """Put results into one message for each front end; each tokenizer worker is a front end."""
    messages: defaultdict[str | None, PackedRowsResults] = defaultdict(PackedRowsResults)
    for job, result in ended:
        messages[job.reply_to.http_worker_ipc].results[job.rid] = result
    for route, message in messages.items():
        message.http_worker_ipc = route
    return list(messages.values())


def tokens_received(ended: Sequence[Ended]) -> int:
    """Tokens of requests as they arrived, and as the data-parallel controller counted them: an
    encoder's rows have become whole prompts since."""
    return sum(len(job.reply_to.input_ids) for job, _ in ended)

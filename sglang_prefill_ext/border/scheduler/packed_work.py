"""The packed work of one scheduler and its place among the scheduler's iterations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import asdict, dataclass, field
from typing import Any

from sglang.srt.runtime_context import get_parallel

from sglang_prefill_ext.border.messages import PackedRowsResults
from sglang_prefill_ext.border.tokenizer_manager.stock_counters import TokenCounters
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

GRAPH_SPEEDUP = 4
"""How many times faster a decode step is as a CUDA graph than launched kernel by kernel: an
estimate for small models, whose steps are shorter than the host's work for them."""

_TICK_MS = 20.0
"""How often the deadlines of queued requests are looked at."""


@dataclass(slots=True)
class PackedWork:
    """What one scheduler has beside its stock batches."""

    runtime: PackedRuntime
    policy: IterationPolicy
    metrics: SchedulerMetrics
    collector: Collector
    graphs: GraphUse
    experts: ExpertUse
    is_short: Callable[[], bool]
    stock_counters: TokenCounters | None = None
    accounts: Accounts = field(default_factory=Accounts)
    _last_look_ms: float = 0.0
    _holders: Set[Job] = frozenset()

    def step(self, *, decoding: bool) -> bool:
        """Take one step of the runtime; the policy says whether it may launch a forward.

        Where slots are short none is in flight afterwards: SGLang would take back generations, and
        end the last one, that find no slot for their next token.

        Args:
            decoding: whether generations are running.
        """
        join_tokens = self.policy.join_tokens(self.runtime.next_tokens, decoding=decoding)
        moved = self.runtime.step(launch=join_tokens is not None, join_tokens=join_tokens or 0)
        if moved:
            self.show_queue()
        if self.runtime.in_flight and self.is_short():
            self.collect()
        return moved

    def collect(self) -> None:
        """Wait for the forwards in flight and answer their requests."""
        if self.runtime.step(launch=False):
            self.show_queue()

    def has_given_room(self) -> bool:
        """Whether a request no longer holds the K/V that it held when this was asked last."""
        before, self._holders = self._holders, self.runtime.holders
        return not before <= self._holders

    def record_iteration(self, computed_before: int, stock_batch: Any) -> None:
        """Account for an iteration.

        Args:
            computed_before: packed tokens computed in all when it began.
            stock_batch: SGLang's batch that runs in it, or None.
        """
        stock_tokens = 0
        if stock_batch is not None:  # those of its prompts, else one a running request
            prompts = stock_batch.forward_mode.is_extend()
            stock_tokens = stock_batch.extend_num_tokens if prompts else stock_batch.batch_size()
        packed_tokens = self.runtime.stats.tokens_computed - computed_before
        self.accounts.record(packed_tokens, int(stock_tokens))

    def is_late(self, now_ms: float, arriving: Iterable[float]) -> bool:
        """Whether any request is to be ended because of its deadline.

        Args:
            now_ms: Unix time in ms.
            arriving: deadlines of the requests that are about to be queued, Unix time in ms.
        """
        if any(deadline < now_ms for deadline in arriving):
            return True
        if 0 <= now_ms - self._last_look_ms < _TICK_MS:  # clocks are set back at times
            return False
        self._last_look_ms = now_ms
        return self.runtime.overdue(now_ms)

    @property
    def queue(self) -> dict[str, float]:
        """What waits: requests, tokens, rows, bytes, and for how long the oldest has, in s."""
        return {
            "requests": self.runtime.waiting_jobs,
            **asdict(self.runtime.waiting_load),
            "oldest_wait_s": self.runtime.oldest_wait_s,
        }

    def show_queue(self) -> None:
        """Bring the metrics up to date."""
        if self.metrics.enabled:
            if self.collector.pauses.new:
                self.collector.show_pauses()
            retried = self.runtime.stats.retried_forwards
            self.metrics.update(self.queue, retried, self.graphs.forwards)
            if self.experts.groups:
                self.metrics.show_experts(self.experts.balance)
        if self.stock_counters is not None:
            stats = self.runtime.stats
            self.stock_counters.update(stats.tokens_computed, stats.tokens_cached)


def packed_work(
    scheduler: Any,
    runtime: PackedRuntime,
    config: PrefillOnlyConfig,
    collector: Collector,
    graphs: GraphUse,
    experts: ExpertUse,
    is_short: Callable[[], bool],
) -> PackedWork:
    """Set up the packed work of a scheduler as the flags ask for it.

    Args:
        is_short: see `Room`.
    """
    launch_tokens = runtime.policy.launch_tokens
    iterations = IterationPolicy(
        step_tokens=config.decode_step_tokens or _step_tokens(scheduler, runtime.policy),
        slowdown=config.decode_slowdown,
        launch_tokens=launch_tokens,
        max_wait_steps=config.max_wait_steps,
    )
    shown = scheduler.metrics_collector_context.current_scheduler_metrics_enabled
    stock = scheduler.metrics_collector if shown else None
    metrics = SchedulerMetrics(stock and stock.labels)
    counters = stock and TokenCounters(stock)
    return PackedWork(runtime, iterations, metrics, collector, graphs, experts, is_short, counters)


def _step_tokens(scheduler: Any, policy: SchedulingPolicy) -> int:
    """Estimate what a decode step costs from what launching a packed forward does.

    Both are mostly the host's time for a model's kernels, unless a CUDA graph replays them.
    """
    replayed = scheduler.tp_worker.model_runner.decode_cuda_graph_captured
    eager_tokens = policy.graphs.eager_tokens
    if not eager_tokens:
        return max(1, policy.launch_tokens // GRAPH_SPEEDUP if replayed else policy.launch_tokens)
    return policy.launch_tokens if replayed else eager_tokens


def answering(scheduler: Any, board: Board | None) -> Callable[[Sequence[Ended]], None]:
    """What sends the results of requests that end together.

    Args:
        board: of several schedulers on one device, where it notes what was done.
    """
    sender, rank = scheduler.ipc_channels.send_to_tokenizer, get_parallel().dp_rank or 0

    def answer(ended: Sequence[Ended]) -> None:
        for message in result_messages(ended):
            sender.send_output(message)
        if board is not None:
            board.done[rank] += tokens_received(ended)

    return answer


def result_messages(ended: Sequence[Ended]) -> list[PackedRowsResults]:
    """Put results into one message to each front end; tokenizer workers are several of them."""
    messages: defaultdict[str | None, PackedRowsResults] = defaultdict(PackedRowsResults)
    for job, result in ended:
        messages[job.reply_to.http_worker_ipc].results[job.rid] = result
    for route, message in messages.items():
        message.http_worker_ipc = route
    return list(messages.values())


def tokens_received(ended: Sequence[Ended]) -> int:
    """Tokens of requests as they came, which is what the data-parallel controller has counted.

    The rows of an encoder are whole prompts by now, and so may have many more.
    """
    return sum(len(job.reply_to.input_ids) for job, _ in ended)

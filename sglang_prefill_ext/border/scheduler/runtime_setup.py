"""Set up the packed path of a scheduler after its model is loaded: measure, check, configure."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import torch
from sglang.srt.model_executor.cuda_graph_config import cuda_graph_fully_disabled

from sglang_prefill_ext.border.model.adapters import Adapters
from sglang_prefill_ext.border.model.alignment import set_up_alignments
from sglang_prefill_ext.border.model.capability import declined_reason
from sglang_prefill_ext.border.model.decoder_model import SglangModel
from sglang_prefill_ext.border.model.expert_setup import set_up_experts
from sglang_prefill_ext.border.model.kv_pool import room_in
from sglang_prefill_ext.border.model.vector_models import model_of
from sglang_prefill_ext.border.scheduler.ask_both_paths import compare_paths, report
from sglang_prefill_ext.border.scheduler.packed_work import RuntimeSetup, answering
from sglang_prefill_ext.border.scheduler.radix import prefix_cache_of, shares_prefixes
from sglang_prefill_ext.border.scheduler.ranks import Ranks
from sglang_prefill_ext.config import PrefillOnlyConfig, Switch
from sglang_prefill_ext.forward.attention_choice import resolve_attention, way_of_all_ranks
from sglang_prefill_ext.forward.calibration import Calibration, calibrate
from sglang_prefill_ext.forward.compile_ahead import compile_ahead
from sglang_prefill_ext.forward.executor import PackedExecutor
from sglang_prefill_ext.forward.graphs.plan import GraphUse
from sglang_prefill_ext.forward.graphs.replay import look_at_weights
from sglang_prefill_ext.forward.kv_pool import PrivateSlots, Room
from sglang_prefill_ext.forward.memory import free_bytes, readout_bytes
from sglang_prefill_ext.process.stages import STARTUP
from sglang_prefill_ext.scheduling.budget import UNLIMITED, ForwardBudget
from sglang_prefill_ext.scheduling.policy import policy_of
from sglang_prefill_ext.scheduling.runtime import PackedRuntime
from sglang_prefill_ext.shared_device.board import Board
from sglang_prefill_ext.startup.answer_check import AnswerCheck, Attempt, attempts
from sglang_prefill_ext.wire.stock_reason import StockReason

logger = logging.getLogger(__name__)


def set_up_runtime(scheduler: Any, config: PrefillOnlyConfig) -> RuntimeSetup:
    """Set up the packed path: choose kernels, measure forwards, and check the known prompts.

    If the model cannot be served, or its answers differ, the runtime declines every request.

    Raises:
        ConfigError: a flag asks for something that is impossible here.
    """
    board = Board.found(config.schedulers) if config.schedulers > 1 else None
    answer = answering(scheduler, board)

    def declining(reason: StockReason) -> PackedRuntime:
        nothing_runs = policy_of(config, ForwardBudget(config.max_forward_tokens), launch_tokens=1)
        return PackedRuntime(None, answer, nothing_runs, declined_reason=reason)

    runner = scheduler.tp_worker.model_runner
    device = torch.device(runner.device)
    # Before the first measured forward, which must run like later ones. Stock batches gain, too.
    experts = set_up_experts(runner.model, device, config)
    set_up_alignments(runner.model, device, config)
    STARTUP.mark("experts")
    reason = declined_reason(scheduler)
    if reason:
        logger.warning("Prefill-only serving: this model takes the stock path (%s)", reason)
        return RuntimeSetup(declining(reason), GraphUse(), experts)
    most_bytes = UNLIMITED if board is None else board.reserve_bytes
    ranks = Ranks(scheduler)
    executor, measured, room, check = _set_up_executor(scheduler, config, ranks, most_bytes)
    if check is not None and not check.same:
        return RuntimeSetup(
            declining(StockReason.KNOWN_ANSWERS_DIFFER), executor.graph_use, experts, check=check
        )
    executor.counts_next = experts.next_forward if experts.groups else None
    fit = Adapters(runner.lora_manager).fit
    policy = policy_of(config, measured.budget, measured.launch_tokens, measured.graphs, fit)
    cache = prefix_cache_of(scheduler, config, room) if executor.causal else None
    runtime = PackedRuntime(
        *(executor, answer, policy),
        cache=cache,
        alone=ranks.count == 1,
        after_failure=ranks.require_usable,
    )
    widths = executor.model.vector_width, executor.model.state_width
    return RuntimeSetup(
        *(runtime, executor.graph_use, experts, widths, check, measured.tokens_per_s),
        after_update=look_at_weights(runner.model, executor.stop_replays, ranks.largest),
        is_short=room.is_short,
    )


def _set_up_executor(
    scheduler: Any, config: PrefillOnlyConfig, ranks: Ranks, most_bytes: int
) -> tuple[PackedExecutor, Calibration, Room, AnswerCheck | None]:
    """Try what was asked for, then without graphs and kernels, until the answers are right.

    Raises:
        Exception: forwards fail in the last attempt; or on one of several ranks, where the others
            may wait for it in the middle of a forward.
    """
    stream = scheduler.forward_stream_ctx if scheduler.enable_overlap else None
    model = model_of(scheduler.tp_worker.model_runner, stream)
    asked = way_of_all_ranks(resolve_attention(config.attention, model), ranks.largest)
    room = room_in(model.pool, scheduler)
    STARTUP.mark("kernels")
    ways = attempts(asked, _graph_tokens(ranks, config, model))
    for attempt in ways:
        try:
            executor, measured, check = _tried(
                scheduler, config, ranks, model, room, attempt, most_bytes
            )
        except Exception:
            if attempt is ways[-1] or ranks.count > 1:
                raise
            logger.exception("Prefill-only serving: forwards fail with %s", attempt.described)
            continue
        if check is None or check.same:
            break
        logger.error("Prefill-only serving: wrong answers with %s: %s", attempt.described, check)
        executor.forget_graphs()  # the next attempt needs the memory
    if check is not None:
        report(check)
        if check.same and attempt.suspect:
            logger.error("%s is left out: without it, both paths answer alike", attempt.suspect)
    executor.graph_use.forwards.clear()  # forwards so far were not for requests
    return executor, measured, room, check


def _tried(
    scheduler: Any,
    config: PrefillOnlyConfig,
    ranks: Ranks,
    model: SglangModel,
    room: Room,
    attempt: Attempt,
    most_bytes: int,
) -> tuple[PackedExecutor, Calibration, AnswerCheck | None]:
    """Measure forwards of one attempt, compile kernels, and compare the paths if asked for."""
    (too_much,) = ranks.largest([-min(free_bytes(model.device), most_bytes)])
    readout = readout_bytes(config.readout_chunk_mib, model.device.type, -too_much)
    executor = PackedExecutor(
        model,
        readout_bytes=readout,
        attention=attempt.attention,
        caches_prefixes=shares_prefixes(room, scheduler),
    )
    measured = calibrate(
        executor,
        config.max_forward_tokens,
        ranks.largest,
        most_bytes,
        graph_tokens=attempt.graph_tokens,
        useful_graphs=config.cuda_graphs is None,
    )
    STARTUP.mark("calibration")
    if model.causal:
        measured = replace(measured, budget=model.pool.set_aside(measured.budget))
    slots = PrivateSlots(room)
    logger.info("Prefill-only serving: %s", measured)
    compile_ahead(executor, measured.budget, slots)
    STARTUP.mark("compilation")
    check = None
    if config.known_answers is Switch.ON:
        check = compare_paths(scheduler, model, executor, measured.budget, slots, ranks)
        STARTUP.mark("known_answers")
    return executor, measured, check


def _graph_tokens(ranks: Ranks, config: PrefillOnlyConfig, model: SglangModel) -> int:
    """Tokens of the largest graph that is asked for; 0 for none."""
    replayable = model.recurrence is None or model.recurrence.is_replayable
    possible = replayable and not cuda_graph_fully_disabled()
    return config.graph_tokens(on_cuda=model.device.type == "cuda" and possible, ranks=ranks.count)

"""Run forwards at start to measure their temporary memory."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from functools import partial

import torch

from sglang_prefill_ext.forward.executor import PackedExecutor
from sglang_prefill_ext.forward.memory import SAFETY, MemoryModel, Sample, fit_memory, peak_bytes
from sglang_prefill_ext.forward.pace import (
    CHUNK_TOKENS,
    LEAST_TOKENS,
    ROW_TOKENS,
    chunk_plans,
    run,
    sample_plan,
)
from sglang_prefill_ext.scheduling.planner import Executor, ForwardPlan

logger = logging.getLogger(__name__)


def measured_memory(executor: PackedExecutor, max_tokens: int, sampled: int) -> MemoryModel:
    """Run forwards of up to `sampled` tokens; fit a model of the memory of up to `max_tokens`.

    A read-out begins after the layers have freed their memory. So the peak of a read-out of whole
    chunks of logits, measured with few tokens, is a lower bound of the model's fixed part.
    """
    tokens, device = max(sampled, LEAST_TOKENS), executor.model.device
    beyond = tokens < max_tokens
    sizes = (
        (tokens if beyond else min(CHUNK_TOKENS, tokens // 2), 1),
        (tokens, tokens // ROW_TOKENS),
        (tokens, tokens // 2),
    )
    plans = [sample_plan(*size, executor.model) for size in sizes]
    run(executor, plans[0])  # allocates what is kept, such as workspaces
    samples = (
        Sample(plan.num_tokens, plan.num_rows, peak_bytes(device, partial(run, executor, plan)))
        for plan in plans
    )
    fitted = fit_memory(*samples, beyond=beyond)
    if not executor.chunk_reads:
        return fitted
    readout = SAFETY * max(
        peak_bytes(device, partial(_run_if_possible, executor, plan))
        for plan in chunk_plans(executor.chunk_reads, tokens)
    )
    readout *= max(1.0, min(2 * executor.chunk_reads, max_tokens) / tokens)  # of whole chunks
    return replace(fitted, fixed_bytes=max(fitted.fixed_bytes, math.ceil(readout)))


def _run_if_possible(executor: Executor, plan: ForwardPlan) -> None:
    """Run a forward; if its sampler fails, only log it: requests that sample get the error."""
    try:
        run(executor, plan)
    except torch.OutOfMemoryError:
        raise
    except Exception:
        logger.warning("Prefill-only serving: a read-out could not be measured", exc_info=True)

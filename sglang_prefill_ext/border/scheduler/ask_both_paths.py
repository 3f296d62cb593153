"""Run the known prompts at start, by SGLang's own prefill and by packed forwards, and compare."""

from __future__ import annotations

import logging
import math
import time
from array import array
from typing import Any

import numpy as np
import torch
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.mem_cache.common import release_kv_cache
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from torch import Tensor

from sglang_prefill_ext.border.model.decoder_model import SglangModel
from sglang_prefill_ext.border.scheduler.ranks import Ranks
from sglang_prefill_ext.forward.executor import PackedExecutor
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.prefix_cache import PrefixCache
from sglang_prefill_ext.startup.answer_check import (
    AnswerCheck,
    Matrix,
    Tolerance,
    gaps,
    tolerance_of,
)
from sglang_prefill_ext.startup.known_answers import (
    LONGEST_WINDOW,
    known_requests,
    lengths_of,
    packed_answers,
    prompts_of,
)
from sglang_prefill_ext.wire.arrays import Float32Array, Int32Array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Labels

logger = logging.getLogger(__name__)


def compare_paths(
    scheduler: Any,
    model: SglangModel,
    executor: PackedExecutor,
    budget: ForwardBudget,
    slots: PrefixCache,
    ranks: Ranks,
) -> AnswerCheck:
    """Compare both paths of a scheduler that has served nothing yet; leaves its pools unchanged.

    If either path raises, and another forward can follow, all answers count as different.

    Args:
        slots: gives room for a prefix between two packed forwards.
        ranks: come to the same result. A rank that fails alone ends, as it would ask the others for
            their results while they wait for it in the middle of a forward.
    """
    begin_s = time.perf_counter()
    vectors, runner = model.vector_width > 0, scheduler.tp_worker.model_runner
    longest = min(scheduler.max_req_input_len, budget.longest_row)
    requests = known_requests(
        vocab_size=model.vocab_size,
        vector_width=model.vector_width,
        longest_prompt=min(
            longest, scheduler.chunked_prefill_size or longest, model.longest_prompt or longest
        ),
        max_tokens=budget.max_tokens,
        window=_window(scheduler, model, slots),
    )
    prompts, noise, spread = lengths_of(requests), 0.0, math.inf
    try:
        stock = _joined(
            [
                _read(_stock_output(scheduler, model, [prompt]), rows)
                for rows in requests
                for prompt in prompts_of(rows)
            ]
        )
        noise = _noise(scheduler, model, requests, stock)
        spread = float(gaps(stock, np.roll(stock, 1, axis=0), vectors=vectors).max())
        packed = _joined(packed_answers(executor, requests, budget, slots, ranks.require_usable))
        apart = gaps(stock, packed, vectors=vectors)
    except Exception as error:
        logger.exception("Prefill-only serving: the known prompts could not be answered")
        ranks.require_usable(error)
        apart = np.full((len(prompts), 1), math.inf)
    largest, medians = apart.max(axis=1).tolist(), np.median(apart, axis=1).tolist()
    noise, *agreed = ranks.largest([noise, *largest, *medians])
    return AnswerCheck(
        prompts,
        tuple(agreed[: len(prompts)]),
        tuple(agreed[len(prompts) :]),
        _tolerance(runner, model, noise),
        time.perf_counter() - begin_s,
        spread,
    )


def report(check: AnswerCheck) -> None:
    """Log the result of the comparison, and so whether packed forwards are used."""
    if check.same:
        logger.info("Prefill-only serving: both paths answer alike: %s", check)
        if not check.is_telling:
            logger.warning(
                "Prefill-only serving: the model answers all known prompts alike, as with "
                "--load-format dummy, so that wrong packed answers would not be noticed. Once it "
                "has its weights, compare both paths with `sglang-prefill compare`."
            )
        return
    logger.error(
        "Prefill-only serving is OFF: packed forwards and SGLang answer known prompts differently, "
        "or one of them not at all (%s), even with --prefill-only-attention torch and without "
        "graphs. Every request takes the stock path. Report it with the model, the device and this "
        "line; --prefill-only-known-answers off serves packed answers all the same.",
        check,
    )


def _window(scheduler: Any, model: SglangModel, slots: PrefixCache) -> int:
    """Return the window that known prompts have to exceed; 0 if there is none.

    On a CPU they would take too long. Prompts of over twice its length must fit into both pools.
    """
    room = min(slots.capacity, scheduler.token_to_kv_pool_allocator.available_size())
    most = min(LONGEST_WINDOW, room // 3) if model.device.type == "cuda" else 0
    return model.window if model.window <= most else 0


def _tolerance(runner: Any, model: SglangModel, noise: float) -> Tolerance:
    return tolerance_of(
        str(model.dtype).removeprefix("torch."),
        quantised=bool(runner.model_config.quantization) or runner.kv_cache_dtype != runner.dtype,
        vectors=model.vector_width > 0,
        tf32=model.device.type == "cuda",
        noise=noise,
        depth=runner.model_config.num_hidden_layers,
    )


def _noise(scheduler: Any, model: SglangModel, requests: list[PackedRows], alone: Matrix) -> float:
    """Return the largest gap between stock answers in one batch and `alone`.

    The batch has the first prompts, as many as fit; 0 if fewer than two do. All requests have the
    same labels.
    """
    prompts = _of_one_batch(scheduler, [each for rows in requests for each in prompts_of(rows)])
    if len(prompts) < 2:
        return 0.0
    together = _joined([_read(_stock_output(scheduler, model, prompts), requests[0])])
    return float(gaps(alone[: len(prompts)], together, vectors=model.vector_width > 0).max())


def _of_one_batch(scheduler: Any, prompts: list[Int32Array]) -> list[Int32Array]:
    """The first prompts, as many as SGLang's pools have room for, each of which may waste part of a
    page, and as SGLang computes at once."""
    slots = scheduler.token_to_kv_pool_allocator.available_size()
    slots = min(slots, scheduler.chunked_prefill_size or slots)
    page = scheduler.token_to_kv_pool_allocator.page_size
    needed = np.cumsum([len(prompt) + page for prompt in prompts])
    room = min(scheduler.req_to_token_pool.available_size(), int((needed <= slots).sum()))
    return prompts[:room]


@torch.no_grad()  # as in SGLang's loop, which could not change pool tensors of inference mode
def _stock_output(scheduler: Any, model: SglangModel, prompts: list[Int32Array]) -> Tensor:
    """Run one stock prefill batch; return its logits or vectors on the host.

    They are float32, ``[prompts, vocab_size]`` or ``[prompts, width]``. The batch is built as in
    `sglang.benchmark.one_batch`, so SGLang's limits of batches, such as the number of running
    requests, do not apply.
    """
    runner = scheduler.tp_worker.model_runner
    requests = [_request(prompt) for prompt in prompts]
    batch = ScheduleBatch.init_new(
        requests,
        scheduler.req_to_token_pool,
        scheduler.token_to_kv_pool_allocator,
        scheduler.tree_cache,
        scheduler.model_config,
        enable_overlap=False,
        spec_algorithm=SpeculativeAlgorithm.NONE,
    )
    batch.prepare_for_extend()
    try:
        with model.stream():
            batch.input_ids = batch.prefill_input_ids_cpu.to(batch.device)
            forward_batch = ForwardBatch.init_new(
                batch, runner, return_hidden_states_before_norm=False
            )
            output = runner.forward(forward_batch).logits_output
            read = output.embeddings if model.vector_width else output.next_token_logits
            on_host: Tensor = read.float().cpu()  # waits for the batch; then slots may be freed
            # A head of one class returns a scalar for each prompt.
            return on_host.view(len(prompts), -1)
    finally:
        for request in requests:
            release_kv_cache(request, scheduler.tree_cache, checkpoint=False)


def _request(prompt: Int32Array) -> Req:
    """A stock request in the state in which the scheduler puts its whole prompt into a batch."""
    ids = array("q", prompt.tolist())
    sampling = SamplingParams(max_new_tokens=0, temperature=0)
    request = Req("known-prompt", "", ids, sampling)
    request.refresh_fill_ids()
    request.extend_end = len(ids)
    request.logprob_start_len = -1
    return request


def _read(output: Tensor, rows: PackedRows) -> Float32Array:
    """Take from the stock path's output what the packed path answers; ``[prompts, values]``."""
    if isinstance(rows.read, Labels):
        labels = torch.from_numpy(rows.read.ids.astype(np.int64))
        output = output.log_softmax(-1)[:, labels]
    return output.numpy()


def _joined(answers: list[Float32Array]) -> Matrix:
    return np.concatenate(answers).astype(np.float64)

"""Draw tokens of packed reads with SGLang's own sampler."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sglang.srt.environ import Envs
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.runtime_context import get_exec
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from torch import Tensor

from sglang_prefill_ext.forward.upload import upload
from sglang_prefill_ext.wire.reads import Best
from sglang_prefill_ext.wire.sampling import WHOLE_VOCABULARY, Sampling


class SglangSampler:
    """Draws tokens as SGLang does for the requests of a prefill batch.

    Every tensor-parallel rank draws, from the same logits and in the same order, so that their
    random generators stay in the same state; SGLang's stock batches rely on that.

    Args:
        runner: SGLang's `ModelRunner` of this rank.
    """

    def __init__(self, runner: Any) -> None:
        self._sampler = runner.sampler
        self._hides_nan: bool = Envs.SGLANG_SANITIZE_NAN_LOGITS.get()

    def draw(
        self,
        logits: Tensor,
        sampling: Sampling,
        positions: Tensor,
        num_top: int,
        listed: list[list[int]],
    ) -> tuple[Tensor, Best[Tensor]]:
        """See `Model.draw`."""
        info, output = batch_info(sampling, logits), LogitsProcessorOutput(logits)
        info.apply_logits_bias(logits)
        reads = len(sampling)
        hidden = logits.isnan().any(dim=-1) if self._hides_nan else None
        # None instead of an empty list spares a copy and a gather for the read in SGLang.
        asked = [tokens or None for tokens in listed]
        tokens = self._sampler(output, info, True, [num_top] * reads, asked, positions)
        top_log_probs = top_tokens = logits.new_empty((reads, 0))
        if num_top:
            top_log_probs = torch.stack(output.next_token_top_logprobs_val)
            top_tokens = torch.stack(output.next_token_top_logprobs_idx)
        of_listed = logits.new_empty(0)
        if output.next_token_token_ids_logprobs_val:
            of_listed = torch.cat(output.next_token_token_ids_logprobs_val)
        log_probs = output.next_token_logprobs
        if hidden is not None:  # show NaN again, which may come from another request's rows
            log_probs = log_probs.masked_fill(hidden, torch.nan)
        token = log_probs[:, None], tokens.float()[:, None]
        return of_listed, Best(*token, top_log_probs, top_tokens.float())


def batch_info(sampling: Sampling, logits: Tensor) -> SamplingBatchInfo:
    """Make what `SamplingBatchInfo.from_schedule_batch` makes of requests with these parameters.

    Penalties are left out: they depend on generated tokens, and there are none yet. The penalty
    that forbids stop tokens comes as a bias.

    Args:
        logits: ``[reads, vocab_size]``, from which tokens will be drawn.
    """
    draws, device = sampling.draws, logits.device
    top_k, top_p, min_p = draws["top_k"], draws["top_p"], draws["min_p"]
    singles = [each.astype(np.float32) for each in (draws["temperature"], top_p, min_p)]
    temperatures, top_ps, min_ps, top_ks, seeds = upload([*singles, top_k, draws["seed"]], device)
    deterministic = get_exec().deterministic.enable_deterministic_inference
    return SamplingBatchInfo(
        temperatures=temperatures.view(-1, 1),
        top_ps=top_ps,
        top_ks=top_ks,
        min_ps=min_ps,
        is_all_greedy=bool((top_k <= 1).all()),
        is_any_greedy=bool((top_k <= 1).any()),
        need_top_p_sampling=bool((top_p != 1).any()),
        need_top_k_sampling=bool((top_k != WHOLE_VOCABULARY).any()),
        need_min_p_sampling=bool((min_p > 0).any()),
        max_top_k=int(top_k.max()) if (top_k < WHOLE_VOCABULARY).all() else None,
        vocab_size=logits.shape[-1],
        sampling_seed=seeds if deterministic else None,
        device=str(device),
        logit_bias=_bias_table(sampling, logits) if len(sampling.biases) else None,
    )


def _bias_table(sampling: Sampling, logits: Tensor) -> Tensor:
    """The biases as SGLang needs them, ``[reads, vocab_size]``."""
    biases, others = sampling.biases, sampling.draws["other_bias"]
    rows, tokens, values, rest = upload(
        [sampling.rows_of_biases, biases["token"], biases["value"], others], logits.device
    )
    table = rest[:, None].repeat(1, logits.shape[1])
    table[rows, tokens.long()] = values
    return table

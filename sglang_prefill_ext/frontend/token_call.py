"""Generation calls that end with the prompt: its log-probs, and at most one token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sglang_prefill_ext.frontend.embed_call import HEALTH_CHECK
from sglang_prefill_ext.wire.packed import Int32Array

# Fields of a tokenized request that change what is computed; with one of them set it is not
# packed (yet).
_UNPACKED_FIELDS = {
    "input_embeds": "embed_overrides",
    "positional_embed_overrides": "embed_overrides",
    "mm_inputs": "multimodal",
    "session_id": "session",
    "session_params": "session",
    "lora_id": "lora",
    "custom_logit_processor": "logit_processor",
    "bootstrap_host": "disaggregation",
    "bootstrap_room": "disaggregation",
    "multi_item_delimiter_indices": "multi_item_scoring",
    "token_indices_to_pool": "token_positions",
    "token_type_ids": "unusual_input",
    "routed_dp_rank": "routed_dp_rank",
    "extra_key": "cache_namespace",
    "cache_salt": "cache_namespace",
}
_UNPACKED_SWITCHES = {
    "return_hidden_states": "hidden_states",
    "return_routed_experts": "routed_experts",
    "return_indexer_topk": "routed_experts",
    "return_sampling_mask": "sampling_mask",
    "return_entropy": "entropy",
    "return_flat_raw_top_logprobs": "flat_logprobs",
    "require_reasoning": "reasoning",
}
# Of its sampling parameters, those that change the one token.
_UNPACKED_SAMPLING = {
    "json_schema": "grammar",
    "regex": "grammar",
    "ebnf": "grammar",
    "structural_tag": "grammar",
    "logit_bias": "logit_bias",
    "frequency_penalty": "penalties",
    "presence_penalty": "penalties",
    "min_new_tokens": "penalties",
    "stop_strs": "stop_strings",
    "stop_regex_strs": "stop_strings",
    "custom_params": "unusual_input",
    "watermark": "unusual_input",
}


@dataclass(frozen=True, slots=True)
class TokenCall:
    """What is wanted of one prompt.

    Attributes:
        ids: tokens of the prompt, at least one.
        start: the first token whose successor's log-prob is wanted; None for the last token only.
        num_top: most probable tokens that are wanted at every read.
        token_ids: tokens whose log-probs are wanted at every read; None without the question.
        generates: whether one token is generated, greedily.
    """

    ids: Int32Array
    start: int | None
    num_top: int
    token_ids: tuple[int, ...] | None
    generates: bool

    @property
    def num_best(self) -> int:
        """`PackedRows.num_best` that answers the call."""
        has_labels = self.start is not None or bool(self.token_ids)
        if self.generates or self.num_top or not has_labels:
            return 1 + self.num_top
        return 0


def is_decision(request: Any) -> bool:
    """Whether a `TokenizedGenerateReqInput` asks for no more than one forward can give.

    One that asks for nothing at all is not: it is there to leave its prefix in the cache.
    """
    sampling = request.sampling_params
    if sampling.n != 1 or (request.rid or "").startswith(HEALTH_CHECK):
        return False
    if sampling.max_new_tokens == 0:
        return bool(request.return_logprob)
    return bool(sampling.max_new_tokens == 1)


def ineligible_token_reason(request: Any) -> str | None:
    """Return why such a request goes down the stock path, or None if it can be packed."""
    return next(_reasons(request), None)


def _reasons(request: Any) -> Iterator[str]:
    for name, reason in _UNPACKED_FIELDS.items():
        if getattr(request, name) is not None:
            yield reason
    for name, reason in _UNPACKED_SWITCHES.items():
        if getattr(request, name):
            yield reason
    sampling = request.sampling_params
    for name, reason in _UNPACKED_SAMPLING.items():
        if getattr(sampling, name):
            yield reason
    if sampling.repetition_penalty != 1.0:
        yield "penalties"
    if (sampling.beam_width or 1) > 1:
        yield "beam_search"
    if sampling.max_new_tokens and sampling.top_k != 1:
        yield "sampling"
    if not request.input_ids or request.logprob_start_len > len(request.input_ids):
        yield "unusual_input"


def token_call_of(request: Any) -> TokenCall:
    """Read an eligible `TokenizedGenerateReqInput`."""
    wants = bool(request.return_logprob)
    start = request.logprob_start_len if wants else -1
    within = 0 <= start < len(request.input_ids)
    ids = request.token_ids_logprob if wants else None
    return TokenCall(
        ids=np.array(request.input_ids, dtype=np.int32),
        start=start if within else None,
        num_top=request.top_logprobs_num if wants else 0,
        token_ids=None if ids is None else tuple(ids),
        generates=bool(request.sampling_params.max_new_tokens),
    )

"""The fields of SGLang's requests that keep a request from being packed, with the reasons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_prefill_ext.border.grammars import grammar_of
from sglang_prefill_ext.wire.stock_reason import StockReason

HEALTH_CHECK = "HEALTH_CHECK"
"""Beginning of the ids of SGLang's own health checks, which are to test the stock path."""

# Fields of an `EmbeddingReqInput` that change what is computed.
UNPACKED_OF_VECTORS = {
    "image_data": StockReason.MULTIMODAL,
    "video_data": StockReason.MULTIMODAL,
    "audio_data": StockReason.MULTIMODAL,
    "input_embeds": StockReason.EMBED_OVERRIDES,
    "multi_item_delimiter_indices": StockReason.MULTI_ITEM_SCORING,
    "decision_layout": StockReason.TOKEN_POSITIONS,
    "lora_id": StockReason.UNUSUAL_INPUT,  # SGLang has not looked for the adapter yet
}

# Fields of a `TokenizedGenerateReqInput` that do.
_UNPACKED_OF_TOKENS = {
    "input_embeds": StockReason.EMBED_OVERRIDES,
    "positional_embed_overrides": StockReason.EMBED_OVERRIDES,
    "mm_inputs": StockReason.MULTIMODAL,
    "session_id": StockReason.SESSION,
    "session_params": StockReason.SESSION,
    "custom_logit_processor": StockReason.LOGIT_PROCESSOR,
    "bootstrap_host": StockReason.DISAGGREGATION,
    "bootstrap_room": StockReason.DISAGGREGATION,
    "multi_item_delimiter_indices": StockReason.MULTI_ITEM_SCORING,
    "token_indices_to_pool": StockReason.TOKEN_POSITIONS,
    "token_type_ids": StockReason.UNUSUAL_INPUT,
    "routed_dp_rank": StockReason.ROUTED_DP_RANK,
    "extra_key": StockReason.CACHE_NAMESPACE,
    "cache_salt": StockReason.CACHE_NAMESPACE,
}
_UNPACKED_SWITCHES = {
    "return_hidden_states": StockReason.HIDDEN_STATES,
    "return_routed_experts": StockReason.ROUTED_EXPERTS,
    "return_indexer_topk": StockReason.ROUTED_EXPERTS,
    "return_sampling_mask": StockReason.SAMPLING_MASK,
    "return_entropy": StockReason.ENTROPY,
    "return_flat_raw_top_logprobs": StockReason.FLAT_LOGPROBS,
}
# Its sampling parameters that need more than the logits to choose the one token.
_UNPACKED_SAMPLING = {
    "stop_regex_strs": StockReason.STOP_REGEX,
    "custom_params": StockReason.UNUSUAL_INPUT,
    "watermark": StockReason.WATERMARK,
}


def unpacked_reason(request: Any, fields: Mapping[str, StockReason]) -> StockReason | None:
    """The reason of the first of these fields that is set in a request; None if none is."""
    found = (reason for name, reason in fields.items() if getattr(request, name) is not None)
    return next(found, None)


def is_decision(request: Any, sampling: Any) -> bool:
    """Whether a generation request for one prompt asks for no more than one forward can give.

    A request that asks for nothing at all does not count: its purpose is to leave its prefix in the
    cache.

    Args:
        sampling: its parameters, as attributes.
    """
    if sampling.n != 1 or (request.rid or "").startswith(HEALTH_CHECK):
        return False
    if sampling.max_new_tokens == 0:
        return bool(request.return_logprob)
    return bool(sampling.max_new_tokens == 1)


def ineligible_token_reason(
    request: Any, *, has_adapters: bool, filters_reasoning: bool
) -> StockReason | None:
    """Return why such a request goes down the stock path, or None if it can be packed.

    Args:
        has_adapters: the server has LoRA adapters. Without them, SGLang ignores an adapter's id.
        filters_reasoning: SGLang forbids some tokens while a request reasons.
    """
    if found := unpacked_reason(request, _UNPACKED_OF_TOKENS):
        return found
    if request.lora_id and not has_adapters:
        return StockReason.UNUSUAL_INPUT
    if request.require_reasoning and filters_reasoning:
        return StockReason.REASONING
    sampling = request.sampling_params
    for asked, fields in ((request, _UNPACKED_SWITCHES), (sampling, _UNPACKED_SAMPLING)):
        for name, reason in fields.items():
            if getattr(asked, name):
                return reason
    if request.require_reasoning and grammar_of(sampling):  # which begins to hold later
        return StockReason.GRAMMAR
    if (sampling.beam_width or 1) > 1:
        return StockReason.BEAM_SEARCH
    return StockReason.UNUSUAL_INPUT if _has_unusual_numbers(request) else None


def _has_unusual_numbers(request: Any) -> bool:
    start, num_top = request.logprob_start_len, request.top_logprobs_num
    # SGLang lets lists, which are for many prompts, pass if no log-probs are asked for.
    if not isinstance(start, int) or not isinstance(num_top, int):
        return True
    return not request.input_ids or start > len(request.input_ids) or num_top < 0

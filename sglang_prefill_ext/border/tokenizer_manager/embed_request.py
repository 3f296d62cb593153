"""Decides whether SGLang's requests for vectors can be packed, and reads those that can."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from sglang_prefill_ext.border.tokenizer_manager.request_fields import (
    HEALTH_CHECK,
    UNPACKED_OF_VECTORS,
    unpacked_reason,
)
from sglang_prefill_ext.frontend.embed.embed_call import EmbedCall
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.wire.stock_reason import StockReason


def embed_call_of(request: Any, *, reads_places: bool) -> EmbedCall:
    """Read an `EmbeddingReqInput` that can be packed.

    Args:
        reads_places: the model can make a vector of any token of a prompt, not only of the last.

    Raises:
        StockPathTaken: it goes down the stock path. `unusual_input` covers everything that SGLang
            itself refuses or treats in its own way.
    """
    if reason := _unpacked_field(request, reads_places=reads_places):
        raise StockPathTaken(reason)
    call = _read(request)
    if call is None or not _are_plain_names(request, call) or not _is_plain(call):
        raise StockPathTaken(StockReason.UNUSUAL_INPUT)
    return call


def _unpacked_field(request: Any, *, reads_places: bool) -> StockReason | None:
    """Why a request goes down the stock path whatever its prompts are; None if nothing is known."""
    if isinstance(request.rid, str) and request.rid.startswith(HEALTH_CHECK):
        return StockReason.HEALTH_CHECK
    if reason := unpacked_reason(request, UNPACKED_OF_VECTORS):
        return reason
    if request.token_indices_to_pool is not None and not reads_places:
        return StockReason.TOKEN_POSITIONS
    adapters = set(request.lora_path) if isinstance(request.lora_path, list) else set()
    if len(adapters) > 1:
        return StockReason.SEVERAL_ADAPTERS
    if None in adapters:  # SGLang refuses that where it has no adapters
        return StockReason.UNUSUAL_INPUT
    if request.return_prompt_token_ids or request.sampling_params not in (None, {}):
        return StockReason.UNUSUAL_INPUT
    if not request.log_metrics or not -(2**63) <= (request.priority or 0) < 2**63:
        return StockReason.UNUSUAL_INPUT
    if request.return_pooled_hidden_states and request.dimensions is not None:
        return StockReason.POOLED_HIDDEN_STATES
    if request.text is not None and request.input_ids is not None:
        return StockReason.UNUSUAL_INPUT
    return None


def _read(request: Any) -> EmbedCall | None:
    """The call, whose fields are to be checked; None if its prompts cannot be packed."""
    prompts = _prompts_of(request)
    if not prompts:
        return None
    is_single = prompts[0] is request.text or prompts[0] is request.input_ids

    def listed(own: Any) -> Any:
        return [own] if own is not None and is_single else own

    positional = request.positional_embed_overrides
    if positional is not None and not isinstance(positional, list):
        positional = [positional]
    embeds = listed(request.embed_overrides) if positional is None else None
    return EmbedCall(
        prompts,
        is_single,
        request.dimensions,
        positional,
        placeholder=None if embeds is None else request.embed_override_token_id,
        embeds=embeds,
        places=listed(request.token_indices_to_pool),
        with_states=bool(request.return_pooled_hidden_states),
    )


def _are_plain_names(request: Any, call: EmbedCall) -> bool:
    """Whether request ids, if any, are one for every prompt, and a lone prompt has no list."""
    rid = request.rid
    if call.is_single and isinstance(request.lora_path, list):
        return False
    if rid is None or call.is_single:
        return isinstance(rid, str | None)
    return isinstance(rid, list) and len(rid) == len(call.prompts)


def _is_plain(call: EmbedCall) -> bool:
    """Whether embeddings and places to read, if there are any, fit their prompts."""
    has_places = call.places is not None
    if call.is_text and (has_places or call.positional is not None):
        return False
    if has_places and call.dimensions is not None:
        return False
    is_pair = isinstance(call.prompts[0], tuple)
    if call.embeds is not None and (is_pair or type(call.placeholder) is not int):
        return False
    of_prompts = (call.positional, _lies_inside), (call.embeds, _has_vectors), (call.places, _reads)
    return all(_fits_each(call.prompts, given, fits) for given, fits in of_prompts)


def _fits_each(prompts: list[Any], given: Any, fits: Callable[[Any, Any], bool]) -> bool:
    """Whether there is nothing, or a list with something that fits for each prompt."""
    if given is None:
        return True
    is_list = isinstance(given, list) and len(given) == len(prompts)
    return is_list and all(map(fits, given, prompts))


def _lies_inside(own: Any, prompt: Any) -> bool:
    return own is None or all(0 <= place < len(prompt) for place in own.positions)


def _has_vectors(own: Any, _prompt: Any) -> bool:
    """Whether these are tensors or arrays, or none; SGLang takes no lists of numbers here."""
    if own is None:
        return True
    is_list = isinstance(own, list) and len(own) > 0
    return is_list and not any(isinstance(each, list | float | int) for each in own)


def _reads(own: Any, prompt: Any) -> bool:
    """Whether these are places of a prompt that ascend."""
    if not isinstance(own, list) or not own or any(type(place) is not int for place in own):
        return False
    ascends = all(one < other for one, other in pairwise(own))
    return ascends and own[0] >= 0 and own[-1] < len(prompt)


def _prompts_of(request: Any) -> list[Any]:
    """The prompts as a list; empty if they cannot be packed."""
    if request.is_cross_encoder_request:
        return text_pairs(request.text)
    if isinstance(request.text, str):
        return [request.text]
    if isinstance(request.text, list):
        return request.text if all(isinstance(each, str) for each in request.text) else []
    ids = request.input_ids
    if not isinstance(ids, list) or not ids:
        return []
    if isinstance(ids[0], list):
        return ids if all(isinstance(each, list) for each in ids) else []
    return [ids]


def text_pairs(text: Any) -> list[tuple[str, str]]:
    """Return pairs of a query and a document; empty if `text` is no list of such pairs.

    Args:
        text: of an `EmbeddingReqInput` whose `is_cross_encoder_request` is set.
    """
    if not isinstance(text, list) or not all(_is_pair(each) for each in text):
        return []
    return [(query, document) for query, document in text]


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) == 2
        and all(isinstance(part, str) for part in value)
    )

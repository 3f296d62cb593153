"""An embedding call as SGLang's `generate_request` receives it, and whether it can be packed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglang_prefill_ext.frontend.pairs import text_pairs

# Fields that change what is computed; a call that sets one of them is not packed (yet).
_UNPACKED_FIELDS = {
    "image_data": "multimodal",
    "video_data": "multimodal",
    "audio_data": "multimodal",
    "input_embeds": "embed_overrides",
    "embed_overrides": "embed_overrides",
    "multi_item_delimiter_indices": "multi_item_scoring",
    "token_indices_to_pool": "token_positions",
    "decision_layout": "token_positions",
}
HEALTH_CHECK = "HEALTH_CHECK"
"""How SGLang begins the ids of its own health checks, which are about the stock path."""


@dataclass(frozen=True, slots=True)
class EmbedCall:
    """What a vector is wanted of.

    Attributes:
        prompts: texts, pairs of texts that are encoded together, or token ids.
        is_single: one prompt that did not come as a list; its answer is no list either.
        dimensions: leading numbers of each vector; None for all.
        positional: for each prompt None, or an object with embeddings `embeds` and their
            `positions` in the prompt; None for none at all.
        with_states: the hidden states, too, of which a head makes the vectors.
        adapter: see `PackedRows`; of the whole call.
    """

    prompts: list[Any]
    is_single: bool
    dimensions: int | None
    positional: list[Any] | None = None
    with_states: bool = False
    adapter: str = ""

    @property
    def is_text(self) -> bool:
        return isinstance(self.prompts[0], (str, tuple))


def ineligible_embed_reason(request: Any) -> str | None:
    """Return why an `EmbeddingReqInput` goes down the stock path, or None if it can be packed.

    `unusual_input` covers everything that SGLang itself refuses or treats in its own way.
    """
    for field, reason in _UNPACKED_FIELDS.items():
        if getattr(request, field) is not None:
            return reason
    if isinstance(request.lora_path, list) and len(set(request.lora_path)) > 1:
        return "several_adapters"
    if request.return_prompt_token_ids:
        return "unusual_input"
    if request.return_pooled_hidden_states and request.dimensions is not None:
        return "pooled_hidden_states"
    if isinstance(request.rid, str) and request.rid.startswith(HEALTH_CHECK):
        return "health_check"
    if request.text is not None and request.input_ids is not None:
        return "unusual_input"
    prompts = _prompts_of(request)
    if not prompts or not _has_plain_positions(request, prompts):
        return "unusual_input"
    return None


def embed_call_of(request: Any) -> EmbedCall:
    """Read an eligible `EmbeddingReqInput`."""
    prompts = _prompts_of(request)
    is_single = prompts[0] is request.text or prompts[0] is request.input_ids
    positional = request.positional_embed_overrides
    if positional is not None and is_single:
        positional = positional if isinstance(positional, list) else [positional]
    return EmbedCall(
        prompts,
        is_single,
        request.dimensions,
        positional,
        with_states=bool(request.return_pooled_hidden_states),
    )


def _has_plain_positions(request: Any, prompts: list[Any]) -> bool:
    """Whether embeddings that come with the request stand inside its prompts of token ids."""
    positional = request.positional_embed_overrides
    if positional is None:
        return True
    listed = positional if isinstance(positional, list) else [positional]
    if len(listed) != len(prompts) or not isinstance(prompts[0], list):
        return False
    return all(
        each is None or all(0 <= place < len(prompt) for place in each.positions)
        for each, prompt in zip(listed, prompts, strict=True)
    )


def _prompts_of(request: Any) -> list[Any]:
    """The prompts as a list; empty where they are none that can be packed."""
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

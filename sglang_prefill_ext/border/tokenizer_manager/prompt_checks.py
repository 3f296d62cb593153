"""Hook in front of SGLang's own requests: what would end its scheduler is refused before."""

from __future__ import annotations

from typing import Any

from sglang.srt.managers.io_struct import GenerateReqInput

from sglang_prefill_ext.border.model.capability import encoder_traits
from sglang_prefill_ext.border.tokenizer_manager.frontend_link import embedding_kind, embedding_rows
from sglang_prefill_ext.border.tokenizer_manager.override_hooks import (
    check_input_embeds,
    check_overrides,
)
from sglang_prefill_ext.border.tokenizer_manager.server import server_of
from sglang_prefill_ext.frontend.token.token_call import TokenNumbers, check_readout
from sglang_prefill_ext.wire.checks import check_positions, check_prompt


def validate_prompt(manager: Any, obj: Any, input_ids: Any) -> None:
    """BEFORE `TokenizerManager._validate_one_request`: stop what kills the scheduler.

    Prompts whose ids a multimodal processor makes are left alone. A turn of a session may be
    empty: what is scored is the session's history.

    Raises:
        RequestError: the prompt is empty, an id lies outside the vocabulary, embeddings that
            come with it or in its place are unlike the model's, or an encoder has no use for
            them, or no positions for so many tokens; or the request is for tokens or positions
            that there are not.
    """
    if server_of(manager) is None:
        return
    if isinstance(obj, GenerateReqInput):
        _numbers_of(obj).check(manager.model_config.vocab_size)
        _check_readout(manager.server_args, obj, input_ids)
    if getattr(obj, "input_embeds", None) is not None:
        check_input_embeds(obj.input_embeds, embedding_kind(manager))
        return
    if input_ids is None:
        return
    if manager.mm_processor is not None and obj.contains_mm_input():
        return
    continues_session = bool((getattr(obj, "session_params", None) or {}).get("id"))
    if len(input_ids) == 0 and continues_session:
        return
    encoder = encoder_traits(manager.model_config)
    check_overrides(obj, embedding_kind(manager), encoder=encoder is not None)
    # What came as texts may have ids by now, see `text_hooks`.
    field = "text" if obj.text is not None else "input_ids"
    check_prompt(input_ids, embedding_rows(manager), field=field)
    # What is over the context length is refused by SGLang.
    if encoder is not None and len(input_ids) <= manager.context_len:
        check_positions(len(input_ids), encoder.longest_prompt, field=field)


def _check_readout(server_args: Any, obj: Any, input_ids: Any) -> None:
    """Check what a `GenerateReqInput` for one prompt asks to be read inside it.

    SGLang reads there only where no token is generated; then as for its setwise scores, whose
    conditions these are.
    """
    if obj.token_indices_to_pool is None or obj.sampling_params.get("max_new_tokens") != 0:
        return
    in_one_piece = (
        server_args.disable_radix_cache
        and server_args.chunked_prefill_size == -1
        and not server_args.allow_auto_truncate
    )
    tokens = None if input_ids is None else len(input_ids)
    check_readout(obj.token_indices_to_pool, tokens, in_one_piece=in_one_piece)


def _numbers_of(obj: Any) -> TokenNumbers:
    """What a `GenerateReqInput` for one prompt asks for."""
    sampling = obj.sampling_params
    return TokenNumbers(
        obj.top_logprobs_num,
        obj.logprob_start_len if obj.return_logprob else -1,
        sampling.get("top_k") or 0,
        sampling.get("min_new_tokens") or 0,
        sampling.get("stop_token_ids") or (),
    )

"""Hooks that refuse requests of SGLang's own path that would end its scheduler, or block it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sglang.srt.managers.io_struct import GenerateReqInput, SessionParams

from sglang_prefill_ext.border.model.model_classes import encoder_traits, reads_places
from sglang_prefill_ext.border.tokenizer_manager.call_context import current_call
from sglang_prefill_ext.border.tokenizer_manager.overrides import (
    check_input_embeds,
    check_overrides,
)
from sglang_prefill_ext.border.tokenizer_manager.request_fields import is_decision
from sglang_prefill_ext.border.tokenizer_manager.server import PrefillServer, server_of
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.token.token_call import (
    check_numbers,
    check_processor,
    check_readout,
)
from sglang_prefill_ext.wire.arrays import EmbeddingKind
from sglang_prefill_ext.wire.checks import check_positions, check_prompt, wrong

_SERVED_WITHOUT_DECODING = {
    "max_new_tokens": (0, 1),
    "beam_width": (None, 0, 1),
    "return_logprob": (False,),
}


def validate_prompt(manager: Any, obj: Any, input_ids: Any) -> None:
    """BEFORE `TokenizerManager._validate_one_request`: refuse requests that end the scheduler.

    Prompts whose ids a multimodal processor makes are not checked. A turn of a session may be
    empty, because the session's history is scored.

    Raises:
        RequestError: a check of those below fails.
    """
    server = server_of(manager)
    if server is None:
        return
    try:
        _check(server, obj, input_ids)
    except RequestError:
        if isinstance(obj, GenerateReqInput) and not current_call().is_stock:
            sampling = SimpleNamespace(**{"n": 1, "max_new_tokens": None} | obj.sampling_params)
            if is_decision(obj, sampling):  # which is counted if it is right
                server.path.metrics.count_requests("refused")
        raise


def check_adapters(obj: Any, _num: int) -> None:
    """BEFORE `GenerateReqInput._normalize_lora_paths`: refuse adapters without a prompt.

    SGLang counts their use, and no answer ends it: the next unloading would wait for ever.

    Raises:
        RequestError: a list has not one adapter for each prompt.
    """
    given = obj.lora_path
    if isinstance(given, list) and len(given) != obj.batch_size:
        raise wrong(
            "lora_path",
            f"there are {len(given)} adapters for {obj.batch_size} prompts; send one for each.",
        )


def _check(server: PrefillServer, obj: Any, input_ids: Any) -> None:
    """See `validate_prompt`."""
    manager, path = server.manager, server.path
    if isinstance(obj, GenerateReqInput):
        sampling = obj.sampling_params
        if not manager.is_generation:
            _check_decodes_nothing(manager, obj)
        check_numbers(
            manager.model_config.vocab_size,
            top_logprobs_num=obj.top_logprobs_num,
            logprob_start_len=obj.logprob_start_len if obj.return_logprob else -1,
            top_k=sampling.get("top_k") or 0,
        )
        _keep_possible_stops(obj, manager.model_config.vocab_size)
        _check_labels(manager, obj)
        _check_hidden_states(obj.return_hidden_states)
        _check_session(obj.session_params or {})
        # Without the flag, SGLang refuses all of them.
        if manager.server_args.enable_custom_logit_processor:
            check_processor(obj.custom_logit_processor)
    _check_adapter(manager, obj)
    _check_readout(manager, obj, input_ids)
    if getattr(obj, "input_embeds", None) is not None:
        _check_embeds_of(obj, path.embeddings)
        return
    if input_ids is None:
        return
    if manager.mm_processor is not None and obj.contains_mm_input():
        return
    continues_session = bool((getattr(obj, "session_params", None) or {}).get("id"))
    if len(input_ids) == 0 and continues_session:
        return
    encoder = encoder_traits(manager.model_config)
    check_overrides(obj, path.embeddings, encoder=encoder is not None)
    # A request with texts may have ids, too, by now, see `text_hooks`.
    own = "text" if obj.text is not None else "input_ids"
    field = current_call().field or own
    check_prompt(input_ids, path.vocab_size, field=field)
    # SGLang itself refuses prompts over the context length.
    if encoder is not None and len(input_ids) <= manager.context_len:
        check_positions(len(input_ids), encoder.longest_prompt, field=field)


def _check_decodes_nothing(manager: Any, obj: Any) -> None:
    """Refuse what a model that makes vectors cannot do; for one token SGLang answers a vector."""
    asked = _asked(manager, obj) | {"return_logprob": bool(obj.return_logprob)}
    for field, served in _SERVED_WITHOUT_DECODING.items():
        if (value := asked.get(field)) not in served:
            raise wrong(
                field,
                f"{value!r:.80} cannot be served, as this model makes vectors. Use /v1/embeddings, "
                "/encode or /classify.",
            )


def _asked(manager: Any, obj: Any) -> dict[str, Any]:
    """The sampling parameters of a request, and those that the server prefers."""
    return {**(manager.preferred_sampling_params or {}), **obj.sampling_params}


def _keep_possible_stops(obj: Any, vocab_size: int) -> None:
    """Leave out stop tokens outside of the vocabulary, which no model generates.

    A batch in which a request has `min_new_tokens` would end SGLang's scheduler over them.
    """
    stops = obj.sampling_params.get("stop_token_ids") or ()
    try:
        possible = [each for each in stops if each is None or 0 <= int(each) < vocab_size]
    except (TypeError, ValueError):
        return  # SGLang refuses them
    if len(possible) < len(stops):
        obj.sampling_params = obj.sampling_params | {"stop_token_ids": possible}


def _check_labels(manager: Any, obj: Any) -> None:
    """Refuse labels that SGLang's metrics lack: an answer that has them cannot be counted."""
    if not manager.enable_metrics:
        return
    for name in obj.custom_labels or ():
        if name not in manager.metrics_collector.labels:
            raise wrong(
                "custom_labels",
                f"{name!r:.80} is no label of this server's metrics. Leave it out, or start the "
                "server with --tokenizer-metrics-allowed-custom-labels.",
            )


def _check_hidden_states(wanted: Any) -> None:
    """Refuse a list, which SGLang reads only with a list of prompts."""
    if not isinstance(wanted, bool) and wanted != "last":
        field = "return_hidden_states"
        raise wrong(field, f'{wanted!r:.80} is no choice; send true, false or "last".')


def _check_session(given: dict[str, Any]) -> None:
    """Refuse parameters of a session that SGLang does not know, look up, or cut prompts at."""
    for name in given.keys() - SessionParams.__struct_fields__:
        raise wrong(f"session_params.{name}", "is not known; leave it out.")
    for name in ("id", "rid"):
        if isinstance(value := given.get(name), list | dict):
            raise wrong(f"session_params.{name}", f"{value!r:.80} is no text; send one.")
    if (offset := given.get("offset")) is not None and not isinstance(offset, int):
        raise wrong("session_params.offset", f"{offset!r:.80} is no whole number; send one.")


def _check_embeds_of(obj: Any, kind: EmbeddingKind) -> None:
    """Check a prompt of embeddings. A session continues token ids, which such a prompt lacks."""
    if (getattr(obj, "session_params", None) or {}).get("id"):
        raise wrong("input_embeds", "a turn of a session takes none; send input_ids.")
    check_input_embeds(obj.input_embeds, kind)


def _check_adapter(manager: Any, obj: Any) -> None:
    """Refuse an adapter's id, unless SGLang has found it by the one name that a request gives.

    Without `--enable-lora` an id does no harm, if it is a text.
    """
    if obj.lora_id is None:
        return
    if not isinstance(obj.lora_id, str):
        field = "lora_path" if obj.lora_path else "lora_id"
        value = getattr(obj, field)
        raise wrong(field, f"{value!r:.80} is no text; send one name as lora_path for one prompt.")
    if not obj.lora_path and manager.server_args.enable_lora:
        raise wrong("lora_id", "SGLang finds ids itself; send the adapter's name as lora_path.")


def _check_readout(manager: Any, obj: Any, input_ids: Any) -> None:
    """Check the positions that a request for one prompt wants to be read.

    SGLang reads them in the same way as for its setwise scores, whose conditions are checked here.
    Where one token is generated it ignores them, but it makes tensors of those for any vectors.
    """
    positions = obj.token_indices_to_pool
    generates = isinstance(obj, GenerateReqInput)
    if positions is None or (generates and _asked(manager, obj).get("max_new_tokens") != 0):
        return
    if not generates and not reads_places(manager.model_config):
        check_readout(positions, None, in_one_piece=True)
        return
    server_args = manager.server_args
    in_one_piece = (
        server_args.disable_radix_cache
        and server_args.chunked_prefill_size == -1
        and not server_args.allow_auto_truncate
    )
    tokens = None if input_ids is None else len(input_ids)
    check_readout(positions, tokens, in_one_piece=in_one_piece)

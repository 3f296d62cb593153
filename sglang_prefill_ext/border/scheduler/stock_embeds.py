"""Refuse stock requests whose embeddings the model cannot take, which would end the scheduler.

To replace single tokens by embeddings, SGLang calls the model's `get_input_embeddings`; for a
prompt of embeddings it passes `input_embeds` to the model's `forward`. Some models lack one or
both, or want them without token ids.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from inspect import Parameter, signature
from typing import Any, TypeAlias

from sglang.srt.managers import io_struct

from sglang_prefill_ext.border.model.model_classes import TOKENS_OR_EMBEDDINGS
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.wire.checks import wrong

_Handler: TypeAlias = Callable[[Any], Any]

_ONE = (io_struct.TokenizedGenerateReqInput, io_struct.TokenizedEmbeddingReqInput)
_SEVERAL = (io_struct.BatchTokenizedGenerateReqInput, io_struct.BatchTokenizedEmbeddingReqInput)


def refuse_embeddings(scheduler: Any) -> None:
    """Make a scheduler answer requests that its model cannot take with HTTP 400."""
    model = scheduler.tp_worker.model_runner.model
    name = type(model).__name__
    takes_embeds = _accepts(model.forward, "input_embeds") and name not in TOKENS_OR_EMBEDDINGS
    has_table = hasattr(model, "get_input_embeddings")
    if takes_embeds and has_table:
        return
    sender = scheduler.ipc_channels.send_to_tokenizer

    def passes(message: Any) -> bool:
        error = _refusal(message, name, takes_embeds=takes_embeds)
        if error is not None:
            reason = {
                "type": "abort",
                "status_code": HTTPStatus.BAD_REQUEST,
                "message": str(error),
            }
            sender.send_output(io_struct.AbortReq(rid=message.rid, finished_reason=reason), message)
        return error is None

    def one(handler: _Handler) -> _Handler:
        return lambda message: handler(message) if passes(message) else None

    def several(handler: _Handler) -> _Handler:
        def handle(message: Any) -> Any:
            message.batch = list(filter(passes, message.batch))
            return handler(message)

        return handle

    mapping = scheduler._request_dispatcher._mapping
    mapping.update({kind: one(mapping[kind]) for kind in _ONE})
    mapping.update({kind: several(mapping[kind]) for kind in _SEVERAL})


def _accepts(function: Callable[..., Any], name: str) -> bool:
    parameters = signature(function).parameters
    return name in parameters or any(
        each.kind is Parameter.VAR_KEYWORD for each in parameters.values()
    )


def _refusal(message: Any, model: str, *, takes_embeds: bool) -> RequestError | None:
    """Return why the model cannot compute a tokenized request; None if it can.

    Called only for models without `get_input_embeddings` or `input_embeds`.
    """
    overrides = message.positional_embed_overrides
    if overrides is not None:
        return wrong(
            "embed_overrides",
            f"{len(overrides.positions)} in the place of tokens, but SGLang's {model} takes none; "
            "send token ids alone, or let the request take the packed path.",
        )
    embeds = getattr(message, "input_embeds", None)
    if embeds is not None and not takes_embeds:
        return wrong(
            "input_embeds", f"{len(embeds)}, but SGLang's {model} takes none; send input_ids."
        )
    return None

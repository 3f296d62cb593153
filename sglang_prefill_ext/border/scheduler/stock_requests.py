"""Keep stock requests from ending SGLang's scheduler: embeddings, sessions, types of tokens."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from inspect import Parameter, signature
from typing import Any, TypeAlias

import torch
from sglang.srt.managers import io_struct

from sglang_prefill_ext.border.model.model_classes import TOKENS_OR_EMBEDDINGS
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.wire.checks import wrong

_Handler: TypeAlias = Callable[[Any], Any]

_ONE = (io_struct.TokenizedGenerateReqInput, io_struct.TokenizedEmbeddingReqInput)
_SEVERAL = (io_struct.BatchTokenizedGenerateReqInput, io_struct.BatchTokenizedEmbeddingReqInput)


def refuse_embeddings(scheduler: Any) -> None:
    """Make a scheduler answer requests with embeddings that its model cannot take with HTTP 400.

    To replace single tokens by embeddings, SGLang calls the model's `get_input_embeddings`; for a
    prompt of embeddings it passes `input_embeds` to the model's `forward`. Some models lack one or
    both, or want them without token ids.
    """
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
            status = HTTPStatus.BAD_REQUEST
            reason = {"type": "abort", "status_code": status, "message": str(error)}
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


def keep_turns(_result: None, session: Any, *_args: Any, **_kwargs: Any) -> None:
    """AFTER `Session.__init__`: keep turns where those behind a removed one can be removed, too."""
    session.req_nodes = Turns()


class Turns(dict[str, Any]):
    """Turns of a session by their names, of which several may have had the same.

    SGLang removes a turn together with those that continue it, while it goes through all of them.
    """

    def items(self) -> Any:
        """A copy, so that turns may be removed meanwhile."""
        return [*super().items()]

    def __delitem__(self, name: str) -> None:
        self.pop(name, None)


def leave_session(request: Any, session: Any, *_args: Any, **_kwargs: Any) -> None:
    """AFTER `Session.create_req`: a turn that a streaming session refuses is none of its turns.

    At its end SGLang would take the session for idle, although another turn runs, and two such
    turns in one batch would both found the session's K/V.
    """
    if session.streaming and request.to_finish is not None:
        request.session = None


def type_all_tokens(_result: None, forward_batch: Any, batch: Any) -> None:
    """AFTER `ForwardBatch._maybe_init_non_generation_fields`: each token of a batch has a type.

    SGLang joins the types of the requests that have some, and so gets too few or, if one of them is
    refused and only its first token computed, too many. 0 is the type where no request has any.
    """
    types = forward_batch.token_type_ids
    if types is None or batch.model_config.is_generation:
        return
    joined: list[int] = []
    for request, tokens in zip(batch.reqs, batch.extend_lens, strict=True):
        joined += (request.token_type_ids or [0] * tokens)[:tokens]
    forward_batch.token_type_ids = torch.tensor(joined, dtype=types.dtype, device=types.device)

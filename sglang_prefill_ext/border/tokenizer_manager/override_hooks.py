"""Embeddings of scoring calls between SGLang's tensors, HTTP bodies and packed requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from sglang.srt.managers.embed_types import PositionalEmbeds
from starlette.requests import Request
from starlette.responses import Response

from sglang_prefill_ext.border.http_server.fast_route import READS_ARRAYS, shorten
from sglang_prefill_ext.border.http_server.http_errors import error_response
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.embed.embed_call import EmbedCall, Positional
from sglang_prefill_ext.frontend.overrides.override_body import (
    BodyOverrides,
    read_decision_overrides,
    read_score_overrides,
)
from sglang_prefill_ext.frontend.overrides.placeholders import checked_overrides
from sglang_prefill_ext.frontend.score.array_body import with_lists
from sglang_prefill_ext.frontend.score.score_call import ScoreCall
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.wire.flat import wrong
from sglang_prefill_ext.wire.overrides import EmbeddingKind

_Read: TypeAlias = Callable[[bytes, PrefillOnlyConfig], tuple[bytes, BodyOverrides] | None]

# Entry of an ASGI scope: embeddings that were taken out of the body.
_OVERRIDES = "prefill_only_overrides"


def accept_bodies(
    app: Any, config: PrefillOnlyConfig, metrics: FrontendMetrics, score_paths: tuple[str, ...]
) -> None:
    """Let SGLang's routes take arrays as base64, which their schemas do not know."""
    readers = dict.fromkeys(score_paths, read_score_overrides)
    for path, read in (readers | {"/v1/decisions": read_decision_overrides}).items():
        shorten(app, path, partial(_take_out, read, config, metrics), READS_ARRAYS)


def call_of(*args: Any, **kwargs: Any) -> ScoreCall:
    """Read the arguments of `score_request`, and embeddings that came in an HTTP body."""
    call = ScoreCall(*args, **kwargs)
    taken: BodyOverrides | None = getattr(call.request, "scope", {}).get(_OVERRIDES)
    return call if taken is None else replace(call, **taken.arguments(call.num_items))


def with_arrays(call: ScoreCall) -> ScoreCall:
    """Return a call whose embeddings are numpy arrays."""
    return _converted(call, torch.Tensor, _array) if call.has_overrides else call


def with_tensors(call: ScoreCall) -> ScoreCall:
    """Return a call whose embeddings are tensors, which is what SGLang takes."""
    return _converted(call, np.ndarray, _tensor) if call.has_overrides else call


def vector_arrays(call: EmbedCall) -> EmbedCall:
    """Return a call whose embeddings are numpy arrays."""
    if not call.has_overrides:
        return call
    arrays = call.positional and [
        None if one is None else Positional(_array(one.embeds), one.positions)
        for one in call.positional
    ]
    return replace(call, positional=arrays, embeds=_each(call.embeds, torch.Tensor, _array))


def check_input_embeds(embeds: Any, kind: EmbeddingKind) -> None:
    """Refuse embeddings of a whole prompt on the stock path that would end the scheduler.

    Args:
        embeds: the `input_embeds` of one prompt.

    Raises:
        RequestError: SGLang hands them to the model in bfloat16, which computes in another dtype;
            there are none, one has too many or few numbers, or one that is not finite.
    """
    if kind.dtype != "bfloat16":
        raise wrong(
            "input_embeds",
            f"SGLang takes them in bfloat16 alone, and this model computes in {kind.dtype}; send "
            "input_ids, or start the server with --dtype bfloat16.",
        )
    try:
        matrix = np.asarray(embeds)
    except ValueError:  # lists of different lengths
        matrix = np.empty(0)
    if not len(embeds) or matrix.dtype.kind not in "fiu" or matrix.ndim != 2:
        raise wrong(
            "input_embeds",
            f"not one list of {kind.width} numbers for every token of a prompt; send these.",
        )
    checked_overrides("input_embeds", matrix.astype(float), kind)


def check_overrides(obj: Any, kind: EmbeddingKind, *, encoder: bool = False) -> None:
    """Refuse embeddings on the stock path that would end the scheduler, or make no sense to it.

    Args:
        encoder: the model is one; any would.

    Raises:
        RequestError: one is of another width or type, or not finite in the model's dtype, or the
            model takes none.
    """
    positional = getattr(obj, "positional_embed_overrides", None)
    if not isinstance(positional, PositionalEmbeds | None):
        raise wrong(
            "positional_embed_overrides",
            f"{positional!r:.80} is no PositionalEmbeds, which only programs can make; leave it "
            "out, or send embeddings to /v1/score.",
        )
    embeds = positional.embeds if positional is not None else getattr(obj, "embed_overrides", None)
    if embeds is not None and encoder:
        raise wrong("embed_overrides", "an encoder takes none in the place of tokens; leave it out")
    if embeds is not None:
        checked_overrides("embed_overrides", _each(embeds, torch.Tensor, _array), kind)


async def _take_out(
    read: _Read,
    config: PrefillOnlyConfig,
    metrics: FrontendMetrics,
    body: bytes,
    request: Request,
) -> Response | bytes:
    try:
        body = with_lists(body, config)
        found = read(body, config)
    except RequestError as error:
        metrics.record_error("refused")
        response: Response = error_response(request.app.state.openai_serving_score, error)
        response.headers.update(READS_ARRAYS)
        return response
    if found is None:
        return body
    body, request.scope[_OVERRIDES] = found
    return body


def _converted(call: ScoreCall, kind: type, convert: Callable[[Any], Any]) -> ScoreCall:
    return replace(
        call,
        query_embed_overrides=_each(call.query_embed_overrides, kind, convert),
        item_embed_overrides=_each(call.item_embed_overrides, kind, convert),
        stacked_query_item_embed_overrides=_each(
            call.stacked_query_item_embed_overrides, kind, convert
        ),
    )


def _each(value: Any, kind: type, convert: Callable[[Any], Any]) -> Any:
    """Convert what is of a kind, at any depth of lists."""
    if isinstance(value, list):
        return [_each(each, kind, convert) for each in value]
    return convert(value) if isinstance(value, kind) else value


def _array(tensor: torch.Tensor) -> Any:
    known = tensor.dtype in (torch.float16, torch.float32, torch.float64)
    plain = tensor if known or not tensor.is_floating_point() else tensor.float()
    return plain.detach().cpu().numpy()


def _tensor(array: Any) -> Any:
    """A list of rows: SGLang joins those of the query and of an item."""
    return list(torch.from_numpy(array.astype(np.float32)))

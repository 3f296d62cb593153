"""Converts and checks embeddings of calls: SGLang's tensors, HTTP bodies and numpy arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sglang.srt.managers.embed_types import PositionalEmbeds

from sglang_prefill_ext.frontend.embed.embed_call import EmbedCall, Positional
from sglang_prefill_ext.frontend.overrides import checked_overrides
from sglang_prefill_ext.frontend.score.placeholders import checked_matrices
from sglang_prefill_ext.frontend.score.score_call import OVERRIDES, ScoreCall, ineligible_reason
from sglang_prefill_ext.wire.arrays import EmbeddingKind
from sglang_prefill_ext.wire.checks import wrong


def with_arrays(call: ScoreCall) -> ScoreCall:
    """Return a call whose embeddings are numpy arrays."""
    return _converted(call, torch.Tensor, _array) if call.has_overrides else call


def with_tensors(call: ScoreCall) -> ScoreCall:
    """Return a call whose embeddings are tensors, which is what SGLang takes."""
    return _converted(call, np.ndarray, _tensor) if call.has_overrides else call


def stock_arguments(call: ScoreCall, kind: EmbeddingKind) -> dict[str, Any]:
    """Return the arguments of SGLang's method.

    Embeddings are checked first, as on the packed path. SGLang itself would join those of different
    widths, which ends in HTTP 500.

    Raises:
        RequestError: see `checked_matrices`.
    """
    if call.has_overrides and ineligible_reason(call) is None:
        checked_matrices(with_arrays(call), 0, kind)
    return with_tensors(call).arguments()


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
        RequestError: the model computes in another dtype than bfloat16, in which SGLang hands them
            on; or there are none, or one has the wrong width, or a number that is not finite.
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
    """Refuse embeddings on the stock path that would end the scheduler.

    Args:
        encoder: the model is an encoder, which takes none.

    Raises:
        RequestError: one is of another width or type, or not finite in the model's dtype; or the
            model takes none.
    """
    positional = getattr(obj, "positional_embed_overrides", None)
    if not isinstance(positional, PositionalEmbeds | None):
        raise wrong(
            "positional_embed_overrides",
            f"{positional!r:.80} is no PositionalEmbeds, which only programs can make; leave it "
            "out, or send embeddings to /v1/score.",
        )
    embeds = None if positional is None else positional.embeds
    if positional is None and getattr(obj, "embed_override_token_id", None) is not None:
        embeds = obj.embed_overrides  # which SGLang ignores if no token is named
    if embeds is not None and encoder:
        raise wrong("embed_overrides", "an encoder takes none in the place of tokens; leave it out")
    if embeds is not None:
        checked_overrides("embed_overrides", _each(embeds, torch.Tensor, _array), kind)


def _converted(call: ScoreCall, kind: type, convert: Callable[[Any], Any]) -> ScoreCall:
    """Convert all embeddings; what items share is converted once."""
    known: dict[int, Any] = {}

    def once(value: Any) -> Any:
        if id(value) not in known:
            known[id(value)] = convert(value)
        return known[id(value)]

    return replace(call, **{name: _each(getattr(call, name), kind, once) for name in OVERRIDES})


def _each(value: Any, kind: type, convert: Callable[[Any], Any]) -> Any:
    """Convert all values of the type `kind`, at any depth of lists."""
    if isinstance(value, list):
        return [_each(each, kind, convert) for each in value]
    return convert(value) if isinstance(value, kind) else value


def _array(tensor: torch.Tensor) -> Any:
    known = tensor.dtype in (torch.float16, torch.float32, torch.float64)
    plain = tensor if known or not tensor.is_floating_point() else tensor.float()
    return plain.detach().cpu().numpy()


def _tensor(array: Any) -> Any:
    """A list of rows, because SGLang joins the lists of the query and of an item."""
    return list(torch.from_numpy(array.astype(np.float32)))

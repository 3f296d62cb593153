"""Reads what requests ask for from their protobuf messages, without copying arrays."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.frontend.options import OPT_OUT_HEADER, RequestOptions, headers_from
from sglang_prefill_ext.frontend.score.score_call import ScoreCall
from sglang_prefill_ext.grpc_frontend import prefill_pb2 as pb
from sglang_prefill_ext.wire.arrays import (
    DTYPES,
    FlatRows,
    Int32Array,
    OverrideArray,
    int_array,
    overrides_from_bytes,
)
from sglang_prefill_ext.wire.checks import wrong
from sglang_prefill_ext.wire.flat import flat_rows, int32_array

_OVERRIDES = "embed_overrides"

_OF_ITEMS = {"item_texts", "item_ids", _OVERRIDES}
"""Fields that every message of a stream may have."""


@dataclass(frozen=True, slots=True)
class CallOptions:
    """How a call is served.

    Attributes:
        stock: SGLang's own path is wanted.
        scheduling: the deadline is that of the gRPC call.
    """

    stock: bool
    scheduling: RequestOptions

    def headers(self) -> dict[str, str]:
        """The same options as HTTP headers."""
        stock = {OPT_OUT_HEADER: "off"} if self.stock else {}
        return headers_from(self.scheduling) | stock


def stock_arguments(call: ScoreCall) -> dict[str, Any]:
    """Return a call as the arguments of `StockScore`, with lists in place of arrays."""
    arguments = call.listed().arguments()
    query, items = call.query_embed_overrides, call.item_embed_overrides
    if query is not None:
        arguments["query_embed_overrides"] = query.tolist()
    if items is not None:
        lists = [None if each is None else each.tolist() for each in items]
        arguments["item_embed_overrides"] = lists
    return {name: value for name, value in arguments.items() if value is not None}


def options_of(options: pb.Options, time_left_s: float | None) -> CallOptions:
    """Read the options of a call that may take `time_left_s` seconds; None for no limit."""
    deadline_ms = None if time_left_s is None else (time.time() + time_left_s) * 1e3
    scheduling = RequestOptions(options.priority, deadline_ms, options.keep_prefix)
    return CallOptions(options.stock, scheduling)


def score_call(request: pb.ScoreRequest) -> ScoreCall:
    """Read a scoring request without its embeddings; token ids are arrays.

    Raises:
        RequestError: arrays are broken, or texts and token ids are mixed.
    """
    items: list[str] | FlatRows
    query: str | Int32Array
    if request.WhichOneof("items") == "item_ids":
        items = flat_rows(request.item_ids.values, request.item_ids.counts, field="item_ids")
        query = int32_array(request.query_ids, field="query_ids")
    else:
        items, query = list(request.item_texts.texts), request.query_text
    if not len(items):
        raise wrong("items", "there are none. Send at least one text, or one row of token ids.")
    if request.WhichOneof("query") == ("query_ids" if isinstance(query, str) else "query_text"):
        raise wrong("query", "texts and token ids are mixed. Send query and items alike.")
    return ScoreCall(
        query=query,
        items=items,
        label_token_ids=_labels(request.labels),
        apply_softmax=request.apply_softmax,
        temperature=request.temperature if request.HasField("temperature") else 1.0,
        item_first=request.item_first,
        return_token_logprobs=request.return_token_logprobs,
    )


def with_overrides(call: ScoreCall, request: pb.ScoreRequest) -> ScoreCall:
    """Add the embeddings of a request to its call, whose number of items was checked.

    Raises:
        RequestError: arrays are broken, or do not fit the items.
    """
    if not request.HasField(_OVERRIDES):
        return call
    message, num_items = request.embed_overrides, call.num_items
    if message.dtype not in DTYPES:
        raise wrong(f"{_OVERRIDES}.dtype", f"{message.dtype!r:.80} is none of {', '.join(DTYPES)}.")
    counts = int32_array(message.item_counts, field=f"{_OVERRIDES}.item_counts")
    table, own = _table(message, "items"), None
    if len(counts) or len(table):
        if len(counts) != num_items or int(counts.min()) < 0:
            raise wrong(f"{_OVERRIDES}.item_counts", f"send one for each of the {num_items} items.")
        total = int(counts.sum(dtype=np.int64))
        if total != len(table):
            raise wrong(
                f"{_OVERRIDES}.items",
                f"the counts add up to {total}, but there are {len(table)} embeddings.",
            )
        parts = np.split(table, np.cumsum(counts, dtype=np.int64)[:-1])
        own = [part if len(part) else None for part in parts]
    return replace(
        call,
        embed_override_token_id=message.token_id,
        query_embed_overrides=_table(message, "query") if message.query else None,
        item_embed_overrides=own,
    )


def _table(message: pb.EmbedOverrides, name: str) -> OverrideArray:
    try:
        return overrides_from_bytes(getattr(message, name), message.dtype, message.width)
    except PackingError as error:
        raise wrong(f"{_OVERRIDES}.{name}", f"{error}. Send whole embeddings.") from error


def without_items(first: pb.ScoreRequest) -> pb.ScoreRequest:
    """Return the first message of a stream without its items, for `next_items`."""
    shared = pb.ScoreRequest()
    shared.CopyFrom(first)
    shared.ClearField("items")
    if shared.HasField(_OVERRIDES):
        shared.embed_overrides.ClearField("items")
        shared.embed_overrides.ClearField("item_counts")
    return shared


def next_items(shared: pb.ScoreRequest, request: pb.ScoreRequest) -> pb.ScoreRequest:
    """Return a later message of a stream, with everything but its items taken from the first.

    Args:
        shared: the first message `without_items`.

    Raises:
        RequestError: it holds more than items.
    """
    given = {field.name for field, _ in request.ListFields()} - _OF_ITEMS
    if request.embed_overrides.query:
        given.add(f"{_OVERRIDES}.query")
    if given:
        name = min(given)
        raise wrong(name, "only the first message of a stream has it. Send items alone.")
    whole = pb.ScoreRequest()
    whole.CopyFrom(shared)
    whole.MergeFrom(request)
    return whole


def prompts_of(prompts: pb.Prompts) -> list[str] | FlatRows:
    """Read the prompts of a call for vectors.

    Raises:
        RequestError: arrays are broken, or there is no prompt.
    """
    found: list[str] | FlatRows
    if prompts.WhichOneof("prompts") == "ids":
        found = flat_rows(prompts.ids.values, prompts.ids.counts, field="prompts.ids")
    else:
        found = list(prompts.texts.texts)
    if not len(found):
        raise wrong("prompts", "there are none. Send at least one text, or one row of token ids.")
    return found


def _labels(labels: pb.Int32Rows) -> FlatRows:
    if labels.counts or not labels.values:
        return flat_rows(labels.values, labels.counts, field="labels")
    ids = int32_array(labels.values, field="labels.values")
    return FlatRows(ids, int_array([len(ids)]))

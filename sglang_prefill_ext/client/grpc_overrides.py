"""Embeddings of a scoring request as a gRPC message."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from sglang_prefill_ext.client.overrides import Matrix
from sglang_prefill_ext.grpc_frontend import prefill_pb2 as pb


def overrides_message(body: dict[str, Any]) -> pb.EmbedOverrides:
    """Return what the fields of `EmbedOverrides.fields` say."""
    query, items = body.get("query_embed_overrides"), body.get("item_embed_overrides")
    of_query = None if query is None else _array(query)
    of_items = _of_items(items)
    given = [each for each in (of_query, *of_items) if each is not None]
    half = all(each.dtype == np.float16 for each in given)
    dtype = np.dtype("<f2" if half else "<f4")
    counts = [0 if each is None else len(each) for each in of_items]
    return pb.EmbedOverrides(
        token_id=body["embed_override_token_id"],
        dtype="float16" if half else "float32",
        width=given[0].shape[1] if given else 0,
        query=_bytes([of_query], dtype),
        items=_bytes(of_items, dtype),
        item_counts=np.array(counts, "<i4").tobytes(),
    )


def _of_items(items: Any) -> list[Matrix | None]:
    if items is None:
        return []
    if isinstance(items, dict):
        return list(_array(items))
    return [None if each is None else _array(each) for each in items]


def _array(form: dict[str, Any]) -> Matrix:
    kind = np.dtype(form["dtype"]).newbyteorder("<")
    return np.frombuffer(base64.b64decode(form["data"]), kind).reshape(form["shape"])


def _bytes(arrays: Sequence[Matrix | None], dtype: np.dtype[Any]) -> bytes:
    return b"".join(each.astype(dtype).tobytes() for each in arrays if each is not None)

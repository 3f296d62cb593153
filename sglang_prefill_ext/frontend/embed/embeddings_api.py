"""Reads and writes plain bodies of ``POST /v1/embeddings``, without an object for every number."""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass
from typing import Literal

import msgspec

from sglang_prefill_ext.frontend.answers import in_parts, usage_of
from sglang_prefill_ext.frontend.embed.embed_call import EmbedCall
from sglang_prefill_ext.frontend.embed.embed_frontend import Embedded
from sglang_prefill_ext.frontend.options import Int64, decoded


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    input: str | list[str | Int64]
    model: str = ""
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Int64 | None = None
    user: str | None = None


_DECODER = msgspec.json.Decoder(_Body)


@dataclass(frozen=True, slots=True)
class EmbeddingsRequest:
    """A body that was read.

    Attributes:
        as_base64: vectors go back as little-endian float32, in base64.
    """

    call: EmbedCall
    as_base64: bool


def read_request(body: bytes) -> EmbeddingsRequest | None:
    """Read a body; None if SGLang is to read it.

    SGLang also reads bodies whose model name has a colon, as it may name a LoRA adapter.
    """
    read = decoded(_DECODER.decode, body)
    if read is None or ":" in read.model:
        return None
    call = EmbedCall.plain(read.input, read.dimensions)
    return None if call is None else EmbeddingsRequest(call, read.encoding_format == "base64")


def answer_body(embedded: Embedded, *, as_base64: bool, model: str) -> bytes:
    """Write SGLang's `EmbeddingResponse`."""
    data = [
        {
            "embedding": _base64(vector) if as_base64 else vector,
            "index": index,
            "object": "embedding",
        }
        for index, vector in enumerate(embedded.vectors)
    ]
    usage = usage_of(embedded.served.num_tokens)
    return msgspec.json.encode(
        {"data": in_parts(data), "model": model, "object": "list", "usage": usage}
    )


def _base64(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")

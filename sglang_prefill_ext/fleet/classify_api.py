"""Reads and writes bodies of ``POST /v1/classify`` and ``POST /classify``.

Only bodies that are plainly right are read here. All others are left to SGLang, which refuses them
in its own words, or serves them.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

import msgspec
import numpy as np

from sglang_prefill_ext.frontend.answers import native_answers, softmax, usage_of
from sglang_prefill_ext.frontend.embed.embed_call import EmbedCall
from sglang_prefill_ext.frontend.embed.embed_frontend import Embedded
from sglang_prefill_ext.frontend.options import Int64, decoded


class _OpenAiBody(msgspec.Struct):
    """The fields of a body that SGLang uses; it ignores all others."""

    input: str | list[str | Int64]
    model: str = ""
    user: str | None = None
    rid: str | list[str] | None = None
    priority: int | None = None


class _NativeBody(msgspec.Struct, forbid_unknown_fields=True):
    text: str | list[str] | None = None
    input_ids: list[Int64 | list[Int64]] | None = None


_OPEN_AI = msgspec.json.Decoder(_OpenAiBody)
_NATIVE = msgspec.json.Decoder(_NativeBody)
_ENCODER = msgspec.json.Encoder()


def read_openai(body: bytes) -> EmbedCall | None:
    """Read a body of `/v1/classify`; None if SGLang is to read it."""
    read = decoded(_OPEN_AI.decode, body)
    if read is None or read.rid is not None or read.priority is not None:
        return None
    return EmbedCall.plain(read.input)


def read_native(body: bytes) -> EmbedCall | None:
    """Read a body of `/classify`; None if SGLang is to read it."""
    read = decoded(_NATIVE.decode, body)
    if read is None or (read.text is None) == (read.input_ids is None):
        return None
    return EmbedCall.plain(read.text if read.input_ids is None else read.input_ids)


def openai_body(embedded: Embedded, *, model: str, class_names: Sequence[str]) -> bytes:
    """Write SGLang's `ClassifyResponse`."""
    data = []
    for index, vector in enumerate(embedded.vectors):
        logits = np.asarray(vector, dtype=np.float32)
        probs = softmax(logits).tolist()
        label = class_names[int(logits.argmax())]
        data.append({"index": index, "label": label, "probs": probs, "num_classes": len(probs)})
    return _ENCODER.encode(
        {
            "id": f"classify-{uuid.uuid4().hex}",
            "object": "list",
            "created": int(time.time()),
            "model": model,
            "data": data,
            "usage": usage_of(embedded.served.num_tokens),
        }
    )


def native_body(embedded: Embedded, call: EmbedCall, *, weights: str, begun_s: float) -> bytes:
    """Write what SGLang answers to a call for vectors, a list for a list of prompts.

    Args:
        weights: SGLang's version of the weights.
        begun_s: when the request came, Unix time.
    """
    made = embedded.vectors, embedded.served, [uuid.uuid4().hex for _ in call.prompts]
    answers = native_answers(*made, weights=weights, seconds=time.time() - begun_s)
    return _ENCODER.encode(answers[0] if call.is_single else answers)

"""Reads and writes bodies of ``POST /v1/rerank`` for a decoder reranker.

Only bodies that are plainly right are read here. All others are left to SGLang, which refuses them
in its own words, or serves them.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import cached_property
from operator import itemgetter
from typing import Annotated, Any

import msgspec
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.options import decoded
from sglang_prefill_ext.frontend.score.score_call import ScoreCall
from sglang_prefill_ext.wire.checks import check_count, check_repeated
from sglang_prefill_ext.wire.stock_reason import StockReason


class RerankBody(msgspec.Struct):
    """The fields of a body that SGLang reads; it ignores others."""

    query: str
    documents: list[str]
    instruct: str | None = None
    top_n: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)] | None = None
    return_documents: bool = True


_DECODER = msgspec.json.Decoder(RerankBody)
_ENCODER = msgspec.json.Encoder()


def read_request(body: bytes) -> RerankBody | None:
    """Read a body; None if SGLang is to read it."""
    read = decoded(_DECODER.decode, body)
    if read is None:
        return None
    texts = (read.query, *read.documents)
    return read if read.documents and all(map(str.strip, texts)) else None


class Reranking(msgspec.Struct, frozen=True):
    """How to ask a decoder reranker.

    Attributes:
        template: chat template of a document.
        yes, no: tokens between which the model decides.
    """

    template: str
    yes: int
    no: int


class Reranker:
    """Makes scoring calls, with prompts by a model's template, in a sandbox like SGLang's."""

    def __init__(self, reranking: Reranking) -> None:
        self._labels = [reranking.yes, reranking.no]
        self._source = reranking.template

    @cached_property
    def _template(self) -> Any:
        return ImmutableSandboxedEnvironment(autoescape=False).from_string(self._source)

    def call(self, wanted: RerankBody, config: PrefillOnlyConfig, request: Any) -> ScoreCall:
        """Return a call with one prompt a document.

        Raises:
            RequestError: there are too many documents, or the query is too long for so many.
            StockPathTaken: the template raises an error, which SGLang is to report.
        """
        asked = wanted.query, wanted.documents, wanted.instruct
        check_documents(*asked, config)
        try:
            prompts = rerank_prompts(self._template, *asked)
        except Exception as error:  # whatever a template raises
            raise StockPathTaken(StockReason.UNUSUAL_INPUT) from error
        return ScoreCall(query="", items=prompts, label_token_ids=self._labels, request=request)


def answer_body(wanted: RerankBody, scores: Sequence[Any]) -> bytes:
    """Write SGLang's list of `RerankResponse`, the best ones first.

    Args:
        scores: probabilities of yes and no, of each document.
    """
    rows: list[dict[str, Any]] = []
    for index, (yes, no) in enumerate(scores):
        total = yes + no
        row: dict[str, Any] = {"score": yes / total if total > 0 else 0.0}
        if wanted.return_documents:
            row["document"] = wanted.documents[index]
        rows.append(row | {"index": index, "meta_info": None})
    score = itemgetter("score")
    if wanted.top_n is not None:
        return _ENCODER.encode(heapq.nlargest(wanted.top_n, rows, key=score))
    return _ENCODER.encode(sorted(rows, key=score, reverse=True))


def check_documents(
    query: str, documents: Sequence[Any], instruct: str | None, config: PrefillOnlyConfig
) -> None:
    """Refuse a call that is too large, before a prompt is made.

    Raises:
        RequestError: there are too many documents, or the query is too long for so many.
    """
    check_count(len(documents), config, field="documents", noun="documents")
    check_repeated(f"{query}{instruct or ''}", documents)


def rerank_prompts(
    template: Any, query: str, documents: Sequence[str], instruct: str | None
) -> list[str]:
    """Return one prompt a document, each as SGLang renders it by itself.

    Args:
        template: a chat template that Jinja has compiled.
        instruct: if None or empty, the template's default holds.

    Raises:
        Exception: whatever the template raises.
    """
    asked = {"role": "user", "content": query}
    return [
        render(template, instruct, messages=[asked, {"role": "user", "content": document}])
        for document in documents
    ]


def render(template: Any, instruct: str | None, **variables: Any) -> str:
    """Return the prompt that a compiled chat template makes of its variables."""
    extra = {"instruct": instruct} if instruct else {}
    return str(template.render(**variables, **extra))

"""Checks `/v1/rerank` calls, and renders the prompt of each document for a decoder reranker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.wire.checks import check_count, check_repeated


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

"""``POST /v1/embeddings`` on the shorter way through the HTTP application."""

from __future__ import annotations

from functools import partial
from typing import Any

from sglang.srt.entrypoints.openai.protocol import UsageInfo
from starlette.requests import Request

from sglang_prefill_ext.border.http_server.fast_route import shorten_packed
from sglang_prefill_ext.border.tokenizer_manager.embed_hooks import packed_vectors
from sglang_prefill_ext.frontend.embed.embed_frontend import EmbedFrontend
from sglang_prefill_ext.frontend.embed.embeddings_api import answer_body, read_request


def shorten_embeddings(app: Any, manager: Any, frontend: EmbedFrontend) -> None:
    """Serve plain requests of the route without SGLang's objects for them."""
    answer = partial(_answer, manager, frontend)
    shorten_packed(app, "/v1/embeddings", "openai_serving_embedding", manager, answer)


async def _answer(
    manager: Any, frontend: EmbedFrontend, body: bytes, request: Request
) -> bytes | None:
    """Answer as `OpenAIServingEmbedding` does; None for what it is to read itself."""
    wanted = read_request(body)
    if wanted is None or frontend.makes_numbers:
        return None
    embedded, _ = await packed_vectors(manager, wanted.call, request, frontend)
    tokens = int(embedded.served.prompt_tokens.sum())
    write = partial(
        answer_body,
        embedded.vectors,
        as_base64=wanted.as_base64,
        model=manager.model_path,
        usage=UsageInfo(prompt_tokens=tokens, total_tokens=tokens).model_dump(),
    )
    return await frontend.answers.run_if_large(embedded.numbers, write)

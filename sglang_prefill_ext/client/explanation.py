"""Asks a server how it serves one scoring request."""

from __future__ import annotations

import json
from typing import Any

import httpx

from sglang_prefill_ext.client import exchange
from sglang_prefill_ext.client.requests import Request
from sglang_prefill_ext.errors import ConfigError, RequestError

EXPLAIN_PATH = "/prefill_only/explain"

_LONGEST_S = 600.0


def explain(base_url: str, body: bytes, *, api_key: str | None = None) -> dict[str, Any]:
    """Have a scoring request served; return the facts of how it was served, by name.

    Args:
        base_url: HTTP address of the server.
        body: JSON of ``/v1/score``, sent as it is.
        api_key: sent as ``Authorization: Bearer``.

    Raises:
        RequestError: `body` is not a JSON object.
        ConfigError: `base_url` is no HTTP address, or of a server without the extension.
        PrefillExtError: no answer, or an error of the server; see `PrefillClient`.
    """
    if exchange.address_of(base_url).scheme in exchange.GRPC_SCHEMES:
        raise ConfigError(
            f"{exchange.without_secrets(base_url)}: gRPC front ends cannot explain requests. "
            "Give the server's http address."
        )
    request = Request(EXPLAIN_PATH, *_checked(body), read=_facts)
    with (
        exchange.http_client(httpx.Client, base_url, api_key) as http,
        exchange.transport_errors(request, base_url),
    ):
        response = http.post(EXPLAIN_PATH, content=body, timeout=_LONGEST_S)
    if response.status_code == httpx.codes.NOT_FOUND:
        raise ConfigError(
            f"{exchange.without_secrets(base_url)} has no {EXPLAIN_PATH}. "
            "Start the server with --enable-prefill-only, or correct the address."
        )
    return exchange.answer_to(request, response)


def _checked(body: bytes) -> tuple[dict[str, Any], int]:
    """The fields of a body and how many items it has."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"The request is not JSON ({error}). Give a body of /v1/score."
        ) from error
    if not isinstance(fields, dict):
        raise RequestError("The request is not a JSON object. Give a body of /v1/score.")
    items = fields.get("items")
    return fields, len(items) if isinstance(items, list) else 1


def _facts(answer: Any, _items: int) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise TypeError("not an object")
    return answer

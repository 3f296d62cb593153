"""Bearer tokens: who shows none of them may check the health, and nothing else."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc

_OPEN = "/grpc.health.v1.Health/Check"
"""For load balancers. `Watch` lasts for as long as a client likes."""


class BearerAuth(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Refuses calls without one of the tokens (`authorization: Bearer <token>`)."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._expected = [f"Bearer {token}".encode() for token in tokens]

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        if details.method == _OPEN or self._knows(details.invocation_metadata):
            return await continuation(details)
        return _REFUSED

    def _knows(self, metadata: Sequence[tuple[str, str | bytes]]) -> bool:
        shown = [value for name, value in metadata if name == "authorization"]
        if len(shown) != 1:
            return False
        given = shown[0].encode() if isinstance(shown[0], str) else shown[0]
        # All are compared, in constant time, so that nothing is learnt from how long it takes.
        return any([hmac.compare_digest(given, token) for token in self._expected])  # noqa: C419


async def _refuse(_requests: Any, context: Any) -> None:
    await context.abort(
        grpc.StatusCode.UNAUTHENTICATED,
        "No valid bearer token. Send the metadata `authorization: Bearer <token>`.",
    )


# On the wire all methods are streams, so that this one refuses each kind without reading anything.
_REFUSED = grpc.stream_stream_rpc_method_handler(_refuse)

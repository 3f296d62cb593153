"""The prefix cache as the packed path uses it: match, compute, then commit or roll back."""

from __future__ import annotations

from typing import Any, Protocol

from sglang_prefill_ext.wire.packed import Int32Array


class PrefixTransaction(Protocol):
    """One request's hold on the cache, from its plan to the end of its last forward.

    What is matched stays where it is until the transaction ends. What the forward stores is
    visible to nobody before `commit`. Ending a transaction twice is an error of ours.
    """

    cached: int
    """Tokens of the prefix whose K/V the cache holds."""
    stored: int
    """Fresh tokens behind the cached ones whose K/V the forward is to store."""

    def load(self, layer: int) -> tuple[Any, Any]:
        """K `[cached, KH, D]` and V `[cached, KH, Dv]` of one layer, copied from the pool."""
        ...

    def store(self, layer: int, k: Any, v: Any) -> None:
        """Write K `[stored, KH, D]` and V `[stored, KH, Dv]` of one layer to the pool."""
        ...

    def commit(self) -> None:
        """The forward has succeeded: make what it stored visible, and let go."""
        ...

    def rollback(self) -> None:
        """The forward failed, or nobody wants it: free what it stored, and let go."""
        ...


class PrefixCache(Protocol):
    """Hands out transactions. Every rank must begin and end the same ones in the same order."""

    def begin(self, prefix: Int32Array) -> PrefixTransaction:
        """Match a prefix of at least one token and take room for what is worth keeping.

        Where there is no room left even after eviction, nothing is stored.
        """
        ...

"""Prefixes whose K/V exist already, and the cache that keeps them from request to request."""

from __future__ import annotations

from typing import Any, Protocol

from sglang_prefill_ext.wire.packed import Int32Array


class PrefixTransaction(Protocol):
    """One forward's hold on the cache: match, compute, then commit or roll back.

    What is matched stays where it is until the transaction ends. What the forward stores is
    visible to nobody before `commit`. It ends exactly once.
    """

    cached: int
    """Tokens of the prefix whose K/V the cache has; 0 or more."""
    slots: Any
    """Where in the pool the K/V of the prefix's first tokens lie: int64 on the device, those of the
    cached tokens, and then those of fresh ones which the forward is to store."""

    def commit(self) -> None:
        """The forward has succeeded: make what it stored visible, and let go, also if it raises."""
        ...

    def rollback(self) -> None:
        """The forward has failed: free what it stored, and let go."""
        ...


class PrefixCache(Protocol):
    """Hands out transactions. Every rank must begin and end the same ones in the same order."""

    def begin(self, prefix: Int32Array, adapter: str = "", *, keep: bool) -> PrefixTransaction:
        """Match a prefix of at least one token and take room for what is worth keeping.

        Where there is no room left even after eviction, nothing is stored.

        Args:
            adapter: that the K/V is computed with; one adapter's is of no use to another.
            keep: the client says that the prefix will come again.
        """
        ...

    def cached_tokens(self, prefix: Int32Array, adapter: str = "") -> int:
        """How many tokens of a prefix could be matched now; nothing is held."""
        ...

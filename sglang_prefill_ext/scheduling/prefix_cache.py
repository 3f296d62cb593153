"""Prefixes whose K/V exist already, and the cache that keeps them from request to request."""

from __future__ import annotations

from typing import Any, Protocol

from sglang_prefill_ext.wire.arrays import Int32Array


class PrefixTransaction(Protocol):
    """Room for the K/V of one prefix: match, reserve, compute, then commit or roll back.

    What is matched stays where it is until the transaction ends. What is stored is visible to
    nobody before `commit`. It ends exactly once: with the forward, or where several forwards need
    the prefix with the request.
    """

    cached: int
    """Tokens of the prefix whose K/V the cache has; 0 or more."""
    slots: Any
    """Where in the pool the K/V of the prefix's first tokens lie: int64 on the device, those of the
    cached tokens, and then those of fresh ones which are reserved."""

    def reserve(self, *, whole: bool) -> bool:
        """Take slots behind the cached tokens, evicting what nobody uses; call it once.

        Args:
            whole: for all of the prefix, else for what is worth keeping.

        Returns:
            Whether there was room. If not, nothing is stored.
        """

    def commit(self) -> None:
        """Everything was computed: make visible what is worth keeping, free the rest, let go.

        It lets go also if it raises.
        """

    def rollback(self) -> None:
        """Something has failed: free what was reserved, and let go."""


class PrefixCache(Protocol):
    """Hands out transactions. Every rank must begin and end the same ones in the same order."""

    shares: bool
    """Whether prefixes go from request to request, else there is only room for those of one."""
    capacity: int
    """Tokens of the longest prefix that there is room for while nobody has any."""

    def begin(self, prefix: Int32Array, adapter: str = "", *, keep: bool) -> PrefixTransaction:
        """Match a prefix of at least one token; nothing is reserved yet.

        Args:
            adapter: that the K/V is computed with; one adapter's is of no use to another.
            keep: the client says that the prefix will come again.
        """

    def begin_private(self, num_tokens: int) -> PrefixTransaction:
        """Room for a prefix of which token ids do not tell all: it is neither matched nor kept."""

    def cached_tokens(self, prefix: Int32Array, adapter: str = "") -> int:
        """How many tokens of a prefix could be matched now; nothing is held."""

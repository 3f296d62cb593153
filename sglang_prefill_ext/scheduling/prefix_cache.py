"""What scheduling needs of a prefix cache: a `PrefixCache` begins a transaction per prefix."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.wire.arrays import Int32Array
from sglang_prefill_ext.wire.packed import PackedRows


class PrefixTransaction(Protocol):
    """The KV slots of one prefix: match, reserve, compute, then commit or roll back.

    Matched tokens cannot be evicted before the transaction ends. Other requests see newly stored
    K/V only after `commit`. A transaction ends exactly once: with its forward or, for a request
    that is divided into several forwards, with the request.
    """

    @property
    def cached(self) -> int:
        """Tokens of the prefix whose K/V the cache has; 0 or more."""

    @property
    def slots(self) -> Any:
        """Slots in the KV pool, int64 on the device: those of the cached tokens, then those that
        are reserved for the fresh tokens behind them."""

    def reserve(self, *, whole: bool) -> bool:
        """Take slots for tokens behind the cached ones, evicting unused entries; call it once.

        Args:
            whole: take slots for the whole prefix, else only for the tokens worth caching.

        Returns:
            Whether there was room. If not, nothing is stored.
        """

    def commit(self) -> None:
        """Everything was computed: cache the tokens worth caching, free the other slots, unlock.

        Unlocks even if it raises.
        """

    def rollback(self) -> None:
        """Something has failed: free the reserved slots, and unlock."""


class PrefixCache(Protocol):
    """Begins transactions. Every rank must begin and end the same ones in the same order."""

    shares: bool
    """Whether later requests can use a prefix; if not, its K/V end with its request."""
    capacity: int
    """Tokens of the longest prefix that fits while no slot is taken."""
    page_tokens: int
    """Tokens of a page; only whole pages of a prefix are found by later requests."""

    def begin(self, prefix: Int32Array, adapter: str = "", *, keep: bool) -> PrefixTransaction:
        """Match a prefix of at least one token; nothing is reserved yet.

        Args:
            adapter: the LoRA adapter that computes the K/V; other adapters cannot use them.
            keep: the client says that the prefix will come again.
        """

    def begin_row(self, beginning: Int32Array, adapter: str = "") -> PrefixTransaction:
        """Begin for the first tokens of a row's prompt, which `rows_seen` says came before."""

    def begin_private(self, num_tokens: int) -> PrefixTransaction:
        """Begin for a prefix that must not be cached: it is neither matched nor kept.

        Token ids do not identify it, as it has embeddings of its own, or some of it is read.
        """

    def cached_tokens(self, prefix: Int32Array, adapter: str = "") -> int:
        """How many tokens of a prefix could be matched now; locks nothing."""

    def rows_seen(self, rows: PackedRows, least: int) -> NDArray[np.int64] | None:
        """Remember rows; return how many first tokens of each one's prompt came before.

        Args:
            least: fewer tokens behind the shared prefix are not worth a group of their own.

        Returns:
            int64 ``[rows]``, more than `prefix_len` or 0 for each row; None if it is 0 for all.
        """

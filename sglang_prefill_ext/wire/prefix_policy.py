"""Decides which prefixes are worth keeping in the prefix cache, by those seen before."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from sglang_prefill_ext.config import PrefillOnlyConfig, PrefixCaching
from sglang_prefill_ext.wire.arrays import Int32Array

BLOCK_TOKENS = 16
"""Prefixes are compared in blocks of this many tokens; only the last block may be shorter."""

REMEMBERED_BLOCKS = 1 << 16
"""Most blocks remembered (about 10 MB); those not seen for longest are forgotten first."""

_WORTH_A_LOOK = 256
"""A prompt that shares no prefix is always looked up in the cache from this many tokens on."""


class PrefixPolicy:
    """Decides how many tokens of a prefix to commit to the prefix cache.

    A cached prefix displaces others and costs a write per layer, so by default only tokens that
    came before are kept: a query that is asked once leaves nothing behind. A block is recognised by
    a digest of all tokens up to its end, so requests that differ later share their equal blocks. A
    prefix that comes again as a whole is kept as a whole, unless it is shorter than one block.
    Decisions depend only on the requests and their order, so tensor-parallel ranks agree.

    Args:
        caching: never, repeated (what was seen before) or always.
        page_tokens: page size of the KV pool; only whole pages can be committed.
    """

    def __init__(self, caching: PrefixCaching, page_tokens: int) -> None:
        self._caching = caching
        self._page_tokens = page_tokens
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def tokens_to_commit(self, prefix: Int32Array, adapter: str = "", *, keep: bool = False) -> int:
        """Remember a prefix; return how many of its first tokens belong into the cache.

        Args:
            adapter: LoRA adapter of the prefix; prefixes of different adapters are never equal.
            keep: the client says that the prefix will come again, which stands in for having
                seen it.

        Returns:
            A multiple of the page size, at most ``len(prefix)``; 0 keeps nothing.
        """
        match self._caching:
            case PrefixCaching.NEVER:
                return 0
            case PrefixCaching.ALWAYS:
                return self._whole_pages(len(prefix))
            case PrefixCaching.REPEATED:
                seen = self._tokens_seen(prefix, adapter)
                return self._whole_pages(len(prefix) if keep else seen)

    def _whole_pages(self, tokens: int) -> int:
        return tokens // self._page_tokens * self._page_tokens

    def _tokens_seen(self, prefix: Int32Array, adapter: str) -> int:
        """Tokens of `prefix` in blocks that came before; remembers all of them."""
        if len(prefix) < BLOCK_TOKENS:
            return 0
        digest = hashlib.blake2b(adapter.encode(), digest_size=16)
        seen = 0
        for start in range(0, len(prefix), BLOCK_TOKENS):
            block = prefix[start : start + BLOCK_TOKENS]
            digest.update(block.tobytes())
            key = digest.digest()
            if key in self._seen:
                seen = start + len(block)
                self._seen.move_to_end(key)
            self._seen[key] = None
        while len(self._seen) > REMEMBERED_BLOCKS:
            self._seen.popitem(last=False)
        return seen


def repeated_prefixes(config: PrefillOnlyConfig, *, caching: bool) -> PrefixPolicy | None:
    """A front end's memory of the prompts that it sends; None without a prefix cache."""
    return PrefixPolicy(config.prefix_caching, page_tokens=1) if caching else None


def lone_prefix(
    prompt: Int32Array, adapter: str, policy: PrefixPolicy | None, *, keep: bool = False
) -> tuple[int, bool]:
    """For a prompt that shares no prefix with another: what to look up in the prefix cache.

    A long prompt is always looked up, and the scheduler knows whether it came before. A short one
    is looked up only if it came before. Most never do, and with a small model a lookup makes a lone
    prompt a sixth slower in the scheduler.

    Args:
        keep: the client says that the prompt will come again, so it counts as seen.

    Returns:
        How many of its tokens to look up, and whether they are known to have come before.
    """
    if policy is None:
        return 0, False
    if len(prompt) >= _WORTH_A_LOOK:
        return len(prompt) - 1, False
    seen = policy.tokens_to_commit(prompt[:-1], adapter, keep=keep)
    return seen, seen > 0

"""Which prefixes are worth keeping in the prefix cache. Pure."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from sglang_prefill_ext.config import PrefillOnlyConfig, PrefixCaching
from sglang_prefill_ext.wire.arrays import Int32Array

BLOCK_TOKENS = 16
"""Prefixes are recognised again in blocks of so many tokens; only the last may be shorter."""

REMEMBERED_BLOCKS = 1 << 16
"""Blocks that are remembered at most; the longest unseen are forgotten first (about 10 MB)."""


_WORTH_A_LOOK = 256
"""Tokens of a prompt that is worth a packed request for what a prefix cache may have of it."""


class PrefixPolicy:
    """Says how many tokens of a prefix to commit.

    A cached prefix displaces others and costs a write per layer, so by default only what came
    before is kept: a query that is asked once leaves nothing behind. A block is recognised by a
    digest of all tokens up to its end, so that requests that differ later share what is equal. What
    comes again as a whole is kept as a whole, unless it is shorter than one block.
    It depends on the requests and their order alone: tensor-parallel ranks decide alike.

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
            adapter: with which the prefix is computed; what another one came with does not count.
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
    """What a front end remembers of the prompts that it sends; None without a prefix cache."""
    return PrefixPolicy(config.prefix_caching, page_tokens=1) if caching else None


def lone_prefix(
    prompt: Int32Array, adapter: str, policy: PrefixPolicy | None, *, keep: bool = False
) -> tuple[int, bool]:
    """How many tokens of a prompt that shares none to look up in the cache, and whether these came
    before.

    A long prompt is looked up in any case, and the scheduler knows whether it came before. A
    short one has to come before: most never come again, and a look takes the scheduler a sixth
    more time than a lone prompt of a small model.

    Args:
        keep: the client says that it will come again, as if it had come before.
    """
    if policy is None:
        return 0, False
    if len(prompt) >= _WORTH_A_LOOK:
        return len(prompt) - 1, False
    seen = policy.tokens_to_commit(prompt[:-1], adapter, keep=keep)
    return seen, seen > 0

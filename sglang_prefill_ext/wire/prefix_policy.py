"""Decides which prefixes and rows are worth keeping in the prefix cache: those seen before."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.config import PrefillOnlyConfig, PrefixCaching
from sglang_prefill_ext.wire.arrays import FlatRows, Int32Array, bounds_of
from sglang_prefill_ext.wire.flat import shared_len, unpacked
from sglang_prefill_ext.wire.packed import PackedRows

BLOCK_TOKENS = 16
"""Prefixes are compared in blocks of this many tokens; only the last block may be shorter."""

REMEMBERED_BLOCKS = 1 << 16
"""Most blocks remembered (about 10 MB); those not seen for longest are forgotten first."""

ROW_BLOCK_TOKENS, LEAST_ROW_TOKENS = 4, 16
"""Rows are recognised in whole blocks of so many tokens, and by no fewer tokens in all."""

_WORTH_A_LOOK = 256
"""A prompt that shares no prefix is always looked up in the cache from this many tokens on."""


class PrefixPolicy:
    """Decides how many tokens of a prefix to commit to the prefix cache.

    A cached prefix displaces others and costs a write per layer, so by default only tokens that
    came before are kept: a query that is asked once leaves nothing behind. A block is recognised by
    a digest of all tokens up to its end, so requests that differ later share their equal blocks. A
    prefix that comes again as a whole is kept as a whole, unless it is shorter than one block.

    A conversation grows from call to call. So the first prefix that goes on behind blocks of
    another is kept, too, but for as many blocks as the other had there, such as a question. Others
    that go on at the same place, as behind a system prompt, are not.

    Decisions depend only on the requests and their order, so tensor-parallel ranks agree.

    Args:
        caching: never, repeated (what was seen before) or always.
        page_tokens: page size of the KV pool; only whole pages can be committed.
    """

    def __init__(self, caching: PrefixCaching, page_tokens: int) -> None:
        self._caching = caching
        self._page_tokens = page_tokens
        # Whole blocks that came behind each block; None once others came there, too.
        self._seen: OrderedDict[bytes, int | None] = OrderedDict()

    def tokens_to_commit(self, prefix: Int32Array, adapter: str = "", *, keep: bool = False) -> int:
        """Remember a prefix; return how many of its first tokens belong into the cache.

        Args:
            adapter: LoRA adapter of the prefix; prefixes of different adapters are never equal.
            keep: the client says that the prefix will come again, which stands in for having
                seen it.

        Returns:
            A multiple of the page size, at most ``len(prefix)``; 0 keeps nothing.
        """
        (kept,) = self.tokens_kept([prefix], adapter)
        if keep and self._caching is not PrefixCaching.NEVER:
            return self.whole_pages(len(prefix))
        return kept

    def tokens_kept(self, prefixes: Sequence[Int32Array], adapter: str = "") -> list[int]:
        """Remember prefixes that came together; return how much of each belongs into the cache.

        What they share among each other has not come before.
        """
        match self._caching:
            case PrefixCaching.NEVER:
                return [0] * len(prefixes)
            case PrefixCaching.ALWAYS:
                kept = [*map(len, prefixes)]
            case PrefixCaching.REPEATED:
                kept = self._tokens_repeated(prefixes, adapter)
        return [self.whole_pages(tokens) for tokens in kept]

    def whole_pages(self, tokens: int) -> int:
        return tokens // self._page_tokens * self._page_tokens

    def _tokens_repeated(self, prefixes: Sequence[Int32Array], adapter: str) -> list[int]:
        """What `REPEATED` keeps of each prefix; remembers all of them."""
        found: list[int] = []
        followed: dict[bytes, int | None] = {}
        for prefix in prefixes:
            keys, whole = _digests(prefix, adapter), len(prefix) // BLOCK_TOKENS
            known = next((n for n in range(len(keys), 0, -1) if keys[n - 1] in self._seen), 0)
            kept = min(known * BLOCK_TOKENS, len(prefix))
            followed |= {key: self._seen.get(key) for key in keys[:known]}
            if 0 < known < whole:
                ended = followed[keys[known - 1]]
                if ended is not None:
                    kept = max(kept, len(prefix) - ended * BLOCK_TOKENS)
                followed[keys[known - 1]] = None
            followed |= {key: max(0, whole - n) for n, key in enumerate(keys[known:], known + 1)}
            found.append(kept)
        for key, blocks in followed.items():  # two steps, as other threads may do the same
            self._seen.pop(key, None)
            self._seen[key] = blocks
        while len(self._seen) > REMEMBERED_BLOCKS:
            self._seen.popitem(last=False)
        return found


class RowMemory:
    """Recognises rows of packed requests that come again, alone or among other rows.

    A row comes again if its prompt begins as before. Its end does not count as far as all rows of
    the request end alike: with the template's last words, or with the query that follows an item.
    What remains counts in small blocks, as ends are also alike by chance, often by a full stop.

    Args:
        capacity: tokens that the cache has room for. A row is forgotten once so many tokens of
            others came, as the cache may have lost it; or earlier, but not before half as many.
        page_tokens: page size of the KV pool; only whole pages of a prompt can be found again.
    """

    def __init__(self, capacity: int, page_tokens: int = 1) -> None:
        self._most_recent, self._page_tokens = capacity // 2, page_tokens
        # Hashes of rows. Once the recent ones have so many tokens, they replace the older ones.
        self._recent: set[int] = set()
        self._older: set[int] = set()
        self._recent_tokens = 0

    def tokens_seen(self, rows: PackedRows, least: int) -> NDArray[np.int64] | None:
        """Remember rows; return how many first tokens of each one's prompt came before.

        Takes about 20 us and 1 us a row.

        Args:
            least: rows are recognised by no fewer tokens in whole pages behind the shared prefix.

        Returns:
            int64 ``[rows]``, more than `prefix_len` or 0 for each row, and not as much as is read;
            None if that is 0 for all, or if the rows cannot be told apart by their ids, or if the
            shared prefix is read.
        """
        prefix_len, least = rows.prefix_len, max(least, LEAST_ROW_TOKENS)
        if rows.num_rows < 2 or rows.prefix_reads or len(rows.overrides):
            return None
        if int(rows.suffix_lens.max()) <= least:
            return None
        _, suffixes = unpacked(rows)
        alike = shared_len(FlatRows(suffixes.values[::-1], suffixes.counts[::-1]))
        ends = np.maximum(alike, rows.read_lens if len(rows.read_lens) else 1)
        lens = prefix_len + suffixes.counts.astype(np.int64) - ends
        lens -= lens % ROW_BLOCK_TOKENS
        lens[lens - lens % self._page_tokens < prefix_len + least] = 0
        recognised = np.flatnonzero(lens)
        if not len(recognised):
            return None
        keys = _row_keys(rows, recognised.tolist(), lens[recognised])
        is_new = np.array([key not in self._recent for key in keys])
        self._recent_tokens += int((lens[recognised[is_new]] - prefix_len).sum())
        is_new &= [key not in self._older for key in keys]
        lens[recognised[is_new]] = 0
        self._recent.update(keys)
        if self._recent_tokens >= self._most_recent:
            self._recent, self._older, self._recent_tokens = set(), self._recent, 0
        return lens if lens.any() else None


def _row_keys(rows: PackedRows, numbers: list[int], lens: NDArray[np.int64]) -> list[int]:
    """Hash the first tokens of some rows' prompts, `lens` each, together with the adapter.

    Whole blocks of a long prefix are hashed once. A row that shares more by chance in one request
    than in another is seldom hashed otherwise.
    """
    apart = rows.prefix_len - rows.prefix_len % (4 * BLOCK_TOKENS)
    shared = hash((rows.adapter, rows.tokens[:apart].tobytes()))
    between = rows.tokens[apart : rows.prefix_len].tobytes()
    suffixes, width = rows.tokens[rows.prefix_len :].tobytes(), rows.tokens.itemsize
    starts = bounds_of(rows.suffix_lens)[numbers]
    stops = starts + lens - rows.prefix_len
    cuts = zip((starts * width).tolist(), (stops * width).tolist(), strict=True)
    return [shared ^ hash(between + suffixes[start:stop]) for start, stop in cuts]


def _digests(prefix: Int32Array, adapter: str) -> list[bytes]:
    """Digests of all tokens up to the end of each block; none of less than a block."""
    if len(prefix) < BLOCK_TOKENS:
        return []
    digest = hashlib.blake2b(adapter.encode(), digest_size=16)
    found = []
    for start in range(0, len(prefix), BLOCK_TOKENS):
        digest.update(prefix[start : start + BLOCK_TOKENS].tobytes())
        found.append(digest.digest())
    return found


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
        How many of its tokens to look up, and whether the cache is to keep them in any case.
    """
    if policy is None:
        return 0, False
    if len(prompt) >= _WORTH_A_LOOK:
        return len(prompt) - 1, False
    seen = policy.tokens_to_commit(prompt[:-1], adapter, keep=keep)
    return seen, seen > 0

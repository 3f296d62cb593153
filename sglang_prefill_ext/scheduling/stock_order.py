"""``--schedule-policy srpt``: in which order SGLang prefills its own requests; pure, no clock.

Shortest remaining prefill first, with the key of `queue.srpt_key`: ``mark + w * r``, where
``mark`` is the prefill tokens that SGLang had computed when the prompt was queued, ``r`` the tokens
of the prompt that its prefix cache lacks, and ``w`` the ageing. A retracted request is queued anew.

*Bound.* Let ``n`` be the tokens of a prompt, ``B`` those of the largest batch, and ``L`` the most
tokens that are queued or begun at any time, each prompt rounded up to pages. The last batch of the
prompt starts before ``w * n + B + L`` further prefill tokens are computed. Proof: however the cache
changes, the prompt's key stays at most ``mark + w * n``. Once that many tokens are computed, which
one batch can overshoot by less than ``B``, every prompt that is queued later has a larger key and
is taken behind, as batches take prompts in order and stop at the first that does not fit. What can
still run before waits at that moment or has begun, ``L`` tokens at most. So counts of cached tokens
may be old without harm. Without ageing there is no such bound.

Not covered: what SGLang passes over although its turn has come, such as an adapter that is not
loaded yet; rows that decode within a prefill batch; and times in which nothing is prefilled because
the memory is full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sglang_prefill_ext.scheduling.queue import srpt_key

POLICY = "srpt"
"""The value of ``--schedule-policy``."""

MATCHED_PER_PASS = 128
"""Prompts whose cached tokens are counted again in a scheduling pass; SGLang's own limit."""

_Request = TypeVar("_Request")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A stock request as the order sees it.

    Attributes:
        mark: prefill tokens that were computed when it was queued.
        tokens: of the prompt, and of what was generated before a retraction; >= 1.
        cached_tokens: how many of them need not be computed, as far as known.
    """

    mark: int
    tokens: int
    cached_tokens: int

    @property
    def remaining_tokens(self) -> int:
        """Tokens that are still to be computed; the last one always is."""
        return max(1, self.tokens - self.cached_tokens)

    def key(self, ageing: int) -> int:
        """Prompts with a smaller one are prefilled first."""
        return srpt_key(self.mark, self.remaining_tokens, ageing)


def to_match(queue: Sequence[_Request], is_new: Callable[[_Request], bool]) -> list[_Request]:
    """Choose the requests whose cached tokens are to be counted in this pass.

    Counting walks the cache along the whole prompt. Those at the head are about to run, and new
    ones need a place; the counts of the others may be old.

    Args:
        queue: in the order of the last pass, with what came since at its end.
        is_new: whether a request was never counted.
    """
    return [*queue[:MATCHED_PER_PASS], *filter(is_new, queue[MATCHED_PER_PASS:])]


def chunk_limit(
    begun: Prompt, waiting: Iterable[Prompt], budget: int, page_size: int, ageing: int
) -> int | None:
    """Return the most tokens of a begun prompt's next chunk, so that others can overtake it.

    Room is left for the prompts in front of the queue that come before the begun one, but never
    more than half: should they not be admitted for want of memory, the begun one still moves on.

    Args:
        waiting: in order.
        budget: tokens of the batch; 0 if prompts are not divided.
        page_size: tokens; a chunk ends with a page.

    Returns:
        A multiple of the page size, at least one page; None: all of the budget.
    """
    reserved = 0
    for prompt in waiting:
        pages = -(-prompt.remaining_tokens // page_size)
        if prompt.key(ageing) >= begun.key(ageing) or reserved + pages * page_size > budget // 2:
            break
        reserved += pages * page_size
    return (budget - reserved) // page_size * page_size if reserved else None

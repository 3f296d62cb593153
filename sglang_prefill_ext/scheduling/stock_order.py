"""``--schedule-policy srpt``: the order in which SGLang prefills stock requests; pure, no clock.

Shortest remaining prefill first, with the key of `queue.srpt_key`: ``mark + w * r``, where
``mark`` is the prefill tokens that SGLang had computed when the prompt was queued, ``r`` the tokens
of the prompt that its prefix cache lacks, and ``w`` the ageing. A retracted request is queued anew.

*Bound.* Let ``n`` be the tokens of a prompt, ``B`` those of the largest batch, and ``L`` the most
tokens that are queued or begun at any time, each prompt rounded up to pages. The last batch of the
prompt starts before ``w * n + B + L`` further prefill tokens are computed. Proof: however the cache
changes, the prompt's key stays at most ``mark + w * n``. Once that many tokens are computed, which
one batch can overshoot by less than ``B``, every prompt that is queued later has a larger key and
is taken after this one, as batches take prompts in order and stop at the first that does not fit.
Only prompts that wait at that moment or have begun can still run before it, ``L`` tokens at most.
So outdated counts of cached tokens do no harm. Without ageing there is no such bound.

Not covered: prompts that SGLang passes over although their turn has come, such as those of an
adapter that is not loaded yet; rows that decode within a prefill batch; and times in which nothing
is prefilled because the memory is full.
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
        tokens: of the prompt, and those generated before a retraction; >= 1.
        cached_tokens: how many of them the prefix cache had when they were last counted.
    """

    mark: int
    tokens: int
    cached_tokens: int

    @property
    def remaining_tokens(self) -> int:
        """Tokens that are still to be computed; the last one always is."""
        return max(1, self.tokens - self.cached_tokens)

    def key(self, ageing: int) -> int:
        return srpt_key(self.mark, self.remaining_tokens, ageing)


def to_match(queue: Sequence[_Request], is_new: Callable[[_Request], bool]) -> list[_Request]:
    """Choose the requests whose cached tokens are to be counted in this pass.

    Counting walks the prefix cache along the whole prompt, so only two kinds are counted: requests
    at the head, which are about to run, and new ones, which have no place yet. The counts of the
    others may be old.

    Args:
        queue: in the order of the last pass, later arrivals at the end.
        is_new: whether the tokens of a request were never counted.
    """
    return [*queue[:MATCHED_PER_PASS], *filter(is_new, queue[MATCHED_PER_PASS:])]


def chunk_limit(
    begun: Prompt, waiting: Iterable[Prompt], budget: int, page_size: int, ageing: int
) -> int | None:
    """Limit the next chunk of a begun prompt, so that shorter prompts can overtake it.

    The limit leaves room for the prompts at the head of the queue whose keys are smaller, but for
    no more than half of the budget: if they are not admitted because memory is short, the begun
    prompt still advances.

    Args:
        waiting: in order.
        budget: tokens of the batch; 0 if prompts are not divided.
        page_size: tokens; a chunk ends with a page.

    Returns:
        Tokens: a multiple of the page size, at least one page; None: the whole budget.
    """
    reserved = 0
    for prompt in waiting:
        pages = -(-prompt.remaining_tokens // page_size)
        if prompt.key(ageing) >= begun.key(ageing) or reserved + pages * page_size > budget // 2:
            break
        reserved += pages * page_size
    return (budget - reserved) // page_size * page_size if reserved else None

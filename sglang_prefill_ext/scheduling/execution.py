"""Which kind of work the device does next, and what each kind has taken; pure, without a clock.

Work is counted in *token equivalents*, tokens that a packed forward computes in the same time, so
that all ranks decide alike. A forward of ``n`` tokens takes ``launch_tokens + n`` of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from sglang_prefill_ext.scheduling.budget import UNLIMITED


class ExecutionClass(StrEnum):
    """What one iteration of the scheduler served."""

    ONE_SHOT = "one_shot"  # packed forwards: nothing of a request is left afterwards
    DECODE = "decode"  # stock batches: requests live on, in the paged KV cache
    MIXED = "mixed"  # both, one after the other


@dataclass(slots=True)
class Account:
    """Iterations of one class, and the tokens that they computed."""

    iterations: int = 0
    packed_tokens: int = 0
    stock_tokens: int = 0


@dataclass(slots=True)
class Accounts:
    """One account per execution class."""

    of: dict[ExecutionClass, Account] = field(
        default_factory=lambda: {each: Account() for each in ExecutionClass}
    )

    def record(self, packed_tokens: int, stock_tokens: int) -> None:
        """Count an iteration; one that computed nothing belongs to no class."""
        if not packed_tokens and not stock_tokens:
            return
        if not stock_tokens:
            account = self.of[ExecutionClass.ONE_SHOT]
        elif not packed_tokens:
            account = self.of[ExecutionClass.DECODE]
        else:
            account = self.of[ExecutionClass.MIXED]
        account.iterations += 1
        account.packed_tokens += packed_tokens
        account.stock_tokens += stock_tokens


@dataclass(frozen=True, slots=True)
class DecodeShare:
    """How much packed work running decode requests put up with.

    Attributes:
        step_tokens: token equivalents of one decode step, >= 1.
        slowdown: decode steps may take so many times as long as without packed work, > 1.
        launch_tokens: what a forward costs besides its tokens, >= 0.
        max_wait_steps: decode steps after which waiting packed work runs in any case, >= 0.
    """

    step_tokens: int
    slowdown: float
    launch_tokens: int
    max_wait_steps: int

    @property
    def allowance(self) -> int:
        """Token equivalents of packed work that every decode step allows."""
        return int((self.slowdown - 1) * self.step_tokens)


class IterationPolicy:
    """Decides before every stock batch whether a packed forward goes first.

    Without running decode requests one goes first whenever packed work waits; one forward, one
    stock batch, so that neither starves. With them, every decode step grants an allowance, which
    is saved up until it pays for the next forward and no further. Of packed work, in token
    equivalents, there are therefore at most

    * ``max(allowance, cost of one forward)`` between two decode steps, and
    * ``n * allowance`` plus one forward between the first and the last of ``n + 1`` steps, which
      keeps their mean distance within `slowdown`, up to that one forward,

    unless a forward costs more than `max_wait_steps` steps allow. Then the other bound holds:
    packed work waits for `max_wait_steps` decode steps at most.
    """

    def __init__(self, share: DecodeShare) -> None:
        self.share = share
        self._saved = 0
        self._waited_steps = 0

    def join_tokens(self, next_tokens: int, *, decoding: bool) -> int | None:
        """Decide about the iteration that begins; call it once each.

        Args:
            next_tokens: of the first waiting piece; 0 if no packed work waits.
            decoding: whether the stock batch that follows is a decode step.

        Returns:
            Up to how many tokens other requests may join the forward, or None for no forward.
        """
        if not decoding or not next_tokens:
            self._saved = self._waited_steps = 0
            return UNLIMITED if next_tokens else None
        cost = self.share.launch_tokens + next_tokens
        allowance = self.share.allowance
        self._saved = min(self._saved + allowance, max(allowance, cost))
        if self._saved < cost and self._waited_steps < self.share.max_wait_steps:
            self._waited_steps += 1
            return None
        payable = self._saved - self.share.launch_tokens
        self._saved = self._waited_steps = 0
        return payable

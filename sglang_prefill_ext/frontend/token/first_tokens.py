"""The tokens that an answer may begin with, if a grammar restricts them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.wire.arrays import Int32Array
from sglang_prefill_ext.wire.sampling import Records, bias_records

MOST_LISTED = 4096
"""Most tokens that are listed; each takes 8 bytes in every row of a packed request."""


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """Some tokens, or all but some.

    Attributes:
        listed: token ids, ascending; int32.
        allowed: only the listed tokens are allowed. Otherwise all others are.
    """

    listed: Int32Array
    allowed: bool

    @classmethod
    def of(cls, is_allowed: NDArray[np.bool_]) -> FirstTokens | None:
        """List the allowed tokens or the others, whichever are fewer.

        Args:
            is_allowed: bool ``[vocab_size]``.

        Returns:
            None if no token is allowed, or if even the shorter list is longer than `MOST_LISTED`.
        """
        num_allowed = int(is_allowed.sum())
        allowed = 2 * num_allowed <= len(is_allowed)
        listed = np.flatnonzero(is_allowed == allowed).astype(np.int32)
        return cls(listed, allowed) if num_allowed and len(listed) <= MOST_LISTED else None

    def restrict(self, biases: Mapping[int, float]) -> tuple[Records, float]:
        """Forbid all other tokens by a bias of minus infinity.

        Args:
            biases: what is added to the logits of some tokens anyway.

        Returns:
            The biases of some tokens, and that of all others.
        """
        if not self.allowed:
            kept = {each: bias for each, bias in biases.items() if each not in self.listed}
            tokens = np.append(self.listed, [*kept])
            values = np.append(np.full(len(self.listed), -np.inf), [*kept.values()])
            return bias_records(tokens, values), 0.0
        records = bias_records(self.listed, 0.0)
        for token, bias in biases.items():
            records["value"][self.listed == token] = bias
        return records, -np.inf

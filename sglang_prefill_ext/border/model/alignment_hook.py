"""Hook on SGLang's DeepGEMM experts: replaces the alignment to which experts' rows are padded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sglang_prefill_ext.config import MoePolicy
from sglang_prefill_ext.moe.policy import LARGE, alignment_for


class AlignmentHook:
    """State of the hook in this process, which runs one model.

    Attributes:
        reason: why SGLang's own choice stays; empty if the hook chooses.
    """

    def __init__(self) -> None:
        self.reason = "no experts"
        self._policy = MoePolicy.STOCK
        self._forced: int | None = None
        self._chosen: Counter[int] = Counter()

    def serve(self, policy: MoePolicy) -> None:
        """Choose alignments from now on."""
        self._policy, self.reason = policy, ""
        self._chosen.clear()

    @contextmanager
    def forcing(self, alignment: int) -> Iterator[None]:
        """Make every call within the context take this alignment."""
        self._forced = alignment
        try:
            yield
        finally:
            self._forced = None

    def alignment(self, rows: int, experts: int, stock: int) -> int:
        """Return the alignment for a product.

        Args:
            stock: SGLang's own choice. It stays if it is not `LARGE`: other devices have kernels of
                other sizes, among which SGLang chooses by the number of rows.
        """
        if stock != LARGE:
            return stock
        if self._forced is not None:
            return self._forced
        if self.reason:
            return stock
        chosen = alignment_for(self._policy, rows, experts)
        self._chosen[chosen] += 1
        return chosen

    def as_dict(self) -> dict[str, Any]:
        """Return reason and counts, ready for JSON; ``chosen``: alignment -> number of products."""
        chosen = {str(alignment): calls for alignment, calls in sorted(self._chosen.items())}
        return {"reason": self.reason, "chosen": chosen}


ALIGNMENTS = AlignmentHook()
"""The hook's state in this process."""


def with_chosen_alignment(original: Callable[..., int], expected_m: int, num_groups: int) -> int:
    """AROUND `get_contiguous_layout_alignment`: return the chosen alignment.

    By it SGLang lays out the rows, and configures DeepGEMM for the products of that layout only.

    Args:
        expected_m: rows of all experts together, whatever the name says.
        num_groups: experts on this device.
    """
    return ALIGNMENTS.alignment(expected_m, num_groups, original(expected_m, num_groups))

"""What the attention of a layer may have beside scores that are scaled products."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class AttentionVariant:
    """Options of one layer; the defaults are plain attention.

    Attributes:
        soft_cap: scores become ``soft_cap * tanh(score / soft_cap)`` before mask and softmax, as in
            Gemma 2; 0: no cap.
        window: how many tokens before its own a query sees, by position in its prompt; None: all.
            Hugging Face's ``sliding_window`` counts the query's own token, too.
        sinks: ``[H]``, any floating dtype: per head a further score in the denominator of the
            softmax, as in gpt-oss; None: no sinks.
    """

    soft_cap: float = 0.0
    window: int | None = None
    sinks: Tensor | None = None

    @property
    def is_plain(self) -> bool:
        return not self.soft_cap and self.window is None and self.sinks is None


PLAIN = AttentionVariant()

"""An output head whose logits are a matrix product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class ProductHead:
    """An output head whose logits are ``soft_cap * tanh(scale * hidden @ weight.T / soft_cap)``.

    Attributes:
        weight: ``[tokens, hidden]``; this rank's part if ranks share the vocabulary.
        first: the token id of its first row.
        scale: factor of every logit.
        soft_cap: bound of every scaled logit; 0 for none.
        gather: an all-gather over the ranks that share the vocabulary: takes ``[n]``, returns
            ``[ranks, n]``. None if this rank has the whole vocabulary.
    """

    weight: Tensor
    first: int = 0
    scale: float = 1.0
    soft_cap: float = 0.0
    gather: Callable[[Tensor], Tensor] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether ``hidden @ weight.T`` are the logits of all tokens."""
        return self.gather is None and self.scale == 1 and not self.soft_cap


def product(weight: Tensor, hidden: Tensor) -> Tensor:
    """Logits ``[n, tokens]`` of n hidden states, of the tokens whose rows `weight` has.

    As in SGLang, hidden states of another dtype are converted to that of the weight.
    """
    return torch.matmul(hidden.to(weight.dtype), weight.T)

"""The steps of a decoder's layers that compute each token alone, and what they cost. Pure.

Weights are the numbers of linear maps and convolutions. Norms, biases, and factors of single heads
or channels are left out. A multiply-add is two operations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from sglang_prefill_ext.sizing.shape import Shape


@dataclass(frozen=True, slots=True)
class Sublayer(ABC):
    """One step of a layer.

    Attributes:
        hidden: size of the residual.
        reduces: whether tensor-parallel ranks add up its outputs.
    """

    hidden: int
    reduces: ClassVar[bool] = True

    @property
    @abstractmethod
    def weights(self) -> int:
        """All of its weights."""

    @property
    def active(self) -> int:
        """The weights that compute one token."""
        return self.weights

    def read_weights(self, tokens: int) -> float:
        """Weights that a forward of so many tokens is expected to read."""
        return self.weights

    def operations(self, shape: Shape) -> int:
        """Operations of a packed forward of all tokens."""
        return 2 * self.active * shape.packed_tokens


@dataclass(frozen=True, slots=True)
class Mlp(Sublayer):
    """Maps up and down, mostly with a gate: ``maps * hidden * width`` weights.

    Attributes:
        width: intermediate size.
        maps: 3 with a gate, 2 without.
    """

    width: int
    maps: int = 3

    @property
    def weights(self) -> int:
        return self.maps * self.hidden * self.width


@dataclass(frozen=True, slots=True)
class Experts(Sublayer):
    """A mixture of experts, with a router: ``hidden * count`` weights.

    Attributes:
        count: number of routed experts.
        active_count: number of routed experts that compute a token.
        width: intermediate size of each.
        shared_width: that of all experts together that compute every token; 0 if there are none.
        maps: see `Mlp`.
    """

    count: int
    active_count: int
    width: int
    shared_width: int = 0
    maps: int = 3

    @property
    def weights(self) -> int:
        return self._always + self._routed(self.count)

    @property
    def active(self) -> int:
        return self._always + self._routed(self.active_count)

    @property
    def routed_operations(self) -> int:
        """Operations of the routed experts for one token."""
        return 2 * self._routed(self.active_count)

    def read_weights(self, tokens: int) -> float:
        """All but those of experts that get no token.

        With even routing, a share of ``1 - (1 - active / count) ** tokens`` of the experts gets
        one.
        """
        share = 1 - (1 - self.active_count / self.count) ** tokens
        return self._always + share * self._routed(self.count)

    @property
    def _always(self) -> int:
        return self.hidden * (self.maps * self.shared_width + self.count)

    def _routed(self, experts: int) -> int:
        return experts * self.maps * self.hidden * self.width


@dataclass(frozen=True, slots=True)
class LayerEmbedding(Sublayer):
    """Adds an embedding that the layer has of each token, as in Gemma 4.

    The embedding is looked up, and a map of the model's first residual is added to it. The layer
    has a map of its residual to a gate, and one of the result back: ``3 * hidden * size`` weights.
    Every rank computes them whole.

    Attributes:
        size: of the embedding.
    """

    size: int
    reduces: ClassVar[bool] = False

    @property
    def weights(self) -> int:
        return 3 * self.hidden * self.size

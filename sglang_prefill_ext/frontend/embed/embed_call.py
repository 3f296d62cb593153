"""A call for vectors, whoever makes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Positional:
    """Embeddings that stand where tokens of one prompt do.

    Attributes:
        embeds: ``[n, hidden]``, or a list of n ``[hidden]``.
        positions: n tokens of the prompt.
    """

    embeds: Any
    positions: list[int]


@dataclass(frozen=True, slots=True)
class EmbedCall:
    """What a vector is wanted of.

    Attributes:
        prompts: texts, pairs of texts that are encoded together, or token ids.
        is_single: one prompt that did not come as a list; its answer is no list either.
        dimensions: leading numbers of each vector; None for all.
        positional: for each prompt None, or what has the fields of `Positional`; None for none at
            all.
        placeholder: token in the places of which `embeds` stand; None where there are none.
        embeds: for each prompt None, or a list of embeddings ``[hidden]``, one a placeholder.
        places: tokens of each prompt of which vectors are wanted, ascending, at least one; None
            for the last one.
        with_states: the hidden states, too, of which a head makes the vectors.
        adapter: see `PackedRows`; of the whole call.
    """

    prompts: list[Any]
    is_single: bool
    dimensions: int | None
    positional: list[Any] | None = None
    placeholder: int | None = None
    embeds: list[Any] | None = None
    places: list[list[int]] | None = None
    with_states: bool = False
    adapter: str = ""

    @property
    def has_overrides(self) -> bool:
        """Whether embeddings come with the call."""
        return self.positional is not None or self.embeds is not None

    @property
    def is_text(self) -> bool:
        return isinstance(self.prompts[0], (str, tuple))

    def contents(self) -> dict[str, Any]:
        """Its prompts: `text`, or `input_ids`."""
        return {"text" if self.is_text else "input_ids": self.prompts}

"""A call for vectors from any route; its texts are encoded, and its embeddings put in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.overrides import checked_overrides, numbered_overrides
from sglang_prefill_ext.frontend.packed_path import PackedPath
from sglang_prefill_ext.frontend.text_batch import TextBatches
from sglang_prefill_ext.frontend.worker import Worker
from sglang_prefill_ext.wire.arrays import EmbeddingKind, Int32Array, OverrideArray
from sglang_prefill_ext.wire.checks import empty_prompt, flatten_ids
from sglang_prefill_ext.wire.stock_reason import StockReason


@dataclass(frozen=True, slots=True)
class Positional:
    """Embeddings that replace those of some tokens of one prompt.

    Attributes:
        embeds: ``[n, hidden]``, or a list of n ``[hidden]``.
        positions: of n tokens in the prompt.
    """

    embeds: Any
    positions: list[int]


@dataclass(frozen=True, slots=True)
class EmbedCall:
    """What a call for vectors asks for.

    Attributes:
        prompts: texts, pairs of texts that are encoded together, or token ids.
        is_single: the one prompt did not come in a list, so its answer is no list either.
        dimensions: how many leading numbers of each vector are wanted; None for all.
        positional: for each prompt None, or an object with the fields of `Positional`; None if no
            prompt has any.
        placeholder: the token that `embeds` replace; None where there are none.
        embeds: for each prompt None, or a list of embeddings ``[hidden]``, one a placeholder.
        places: positions of the tokens in each prompt whose vectors are wanted, ascending, at
            least one; None for the last token only.
        with_states: the hidden states that a head makes the vectors of are wanted, too.
        adapter: see `PackedRows`; all prompts of the call use it.
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

    @classmethod
    def plain(cls, given: Any, dimensions: int | None = None) -> EmbedCall | None:
        """The call of a body that has nothing but prompts; None if SGLang is to judge it.

        Args:
            given: a text, the ids of one prompt, or a list of either.
        """
        kinds = {str} if isinstance(given, str) else set(map(type, given))
        is_single = isinstance(given, str) or kinds == {int}
        prompts = [given] if is_single else given
        if kinds == {int}:
            fits = min(given) >= 0
        else:
            fits = (
                all(map(str.strip, prompts)) if kinds == {str} else kinds == {list} and all(given)
            )
        return cls(prompts, is_single, dimensions) if fits else None

    @property
    def has_overrides(self) -> bool:
        """Whether embeddings come with the call."""
        return self.positional is not None or self.embeds is not None

    @property
    def is_text(self) -> bool:
        return isinstance(self.prompts[0], (str, tuple))

    def contents(self) -> dict[str, Any]:
        """The prompts, by the name of SGLang's field: `text` or `input_ids`."""
        return {"text" if self.is_text else "input_ids": self.prompts}


class PromptEncoder:
    """Encodes and checks prompts off the event loop; texts of concurrent calls together."""

    def __init__(self, path: PackedPath, worker: Worker) -> None:
        self._path = path
        self._worker = worker
        types = 1 if path.encoder is None else path.encoder.token_types
        self._texts, self._pairs = (
            TextBatches(path, worker, partial(_checked_text, limit))
            for limit in (path.vocab_size, types * path.vocab_size)
        )

    async def token_ids(self, call: EmbedCall, request: Any) -> list[Int32Array]:
        """Return the checked ids of the prompts of a call.

        Raises:
            RequestError: a prompt is empty, or an id lies outside the vocabulary.
            StockPathTaken: there is no tokenizer.
        """
        if call.is_text:
            if not self._path.has_tokenizer:
                raise StockPathTaken(StockReason.NO_TOKENIZER)
            batches = self._texts if isinstance(call.prompts[0], str) else self._pairs
            return await batches.ask(call.prompts, request)
        tokens = sum(map(len, call.prompts))
        args = (self._path.vocab_size, call.prompts, "input_ids")
        return await self._worker.run_if_large(tokens, _checked, *args)


def _checked_text(limit: int, ids: list[int]) -> Int32Array:
    (checked,) = _checked(limit, [ids], "text")
    return checked


def _checked(limit: int, prompts: Sequence[list[int]], field: str) -> list[Int32Array]:
    if not all(prompts):
        raise empty_prompt(field)
    return [flatten_ids([prompt], limit, field=field) for prompt in prompts]


def place_of_vectors(
    call: EmbedCall, prompts: Sequence[Int32Array], kind: EmbeddingKind
) -> tuple[list[Int32Array], OverrideArray]:
    """Put the embeddings of a call for vectors into its prompts, at positions or placeholders.

    Args:
        call: has embeddings, which are arrays.

    Returns:
        The prompts, and the table that their negative ids name rows of.

    Raises:
        StockPathTaken: a prompt does not have as many placeholders as embeddings.
        RequestError: see `checked_overrides`.
    """
    positional = call.positional
    if positional is None:
        pairs = zip(prompts, call.embeds or (), strict=True)
        positional = [_at_placeholders(call.placeholder, *pair) for pair in pairs]
    matrices = [
        None if each is None else checked_overrides("embed_overrides", each.embeds, kind)
        for each in positional
    ]
    table, (ids,) = numbered_overrides([matrices])
    placed = []
    for prompt, each, own in zip(prompts, positional, ids, strict=True):
        changed = prompt.copy()
        if own is not None:
            changed[each.positions] = own
        placed.append(changed)
    return placed, table


def _at_placeholders(placeholder: int | None, prompt: Int32Array, embeds: Any) -> Positional | None:
    """The embeddings of a prompt with the positions of its placeholders."""
    if embeds is None:
        return None
    positions = np.flatnonzero(prompt == placeholder).tolist()
    if len(positions) != len(embeds):
        raise StockPathTaken(StockReason.UNUSUAL_INPUT)
    return Positional(embeds, positions)

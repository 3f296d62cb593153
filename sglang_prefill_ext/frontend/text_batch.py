"""Encodes the texts of concurrent calls in few calls of the tokenizer, off the event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any, Generic, TypeVar

from sglang_prefill_ext.frontend.gather import Gatherer
from sglang_prefill_ext.frontend.packed_path import PackedPath
from sglang_prefill_ext.frontend.worker import Worker
from sglang_prefill_ext.wire.checks import is_unicode

Prompt = TypeVar("Prompt")


class TextBatches(Generic[Prompt]):
    """Encodes the texts of several calls together, in the batches of a `Gatherer`.

    Args:
        finish: makes a prompt of the ids of a text; called in the thread that encodes.
    """

    def __init__(
        self, path: PackedPath, worker: Worker, finish: Callable[[list[int]], Prompt]
    ) -> None:
        self.path = path
        self._worker = worker
        self._finish = finish
        self._gatherer: Gatherer[Any, Prompt] = Gatherer(self._encode, path.config)

    async def ask(self, texts: Sequence[Any], request: Any = None) -> list[Prompt]:
        """Return a prompt of each text, or of each pair of texts.

        Args:
            request: of the client, see `Gatherer.ask`.

        Raises:
            ServerBusyError: see `Worker.run`.
            Exception: whatever the tokenizer or `finish` raises of one of these texts.
        """
        # Texts and pairs of texts are not mixed in one call of the tokenizer.
        pairs = isinstance(texts[0], tuple)
        return await self._gatherer.ask(pairs, list(texts), request)

    async def _encode(self, _pairs: bool, texts: list[Any]) -> Sequence[Prompt | Exception]:
        self.path.metrics.count("text_batches")
        return await self._worker.run(self._encode_now, texts)

    def _encode_now(self, texts: list[Any]) -> list[Prompt | Exception]:
        try:
            encoded = self.path.link.encode(texts)
        except BaseException as error:  # a tokenizer's panic in Rust is no `Exception`
            if len(texts) == 1:
                return [error if isinstance(error, Exception) else RuntimeError(repr(error))]
            return self._encode_apart(texts)
        return [self._finished(ids) for ids in encoded]

    def _encode_apart(self, texts: list[Any]) -> list[Prompt | Exception]:
        """Encode texts that could not be encoded together.

        Texts with lone surrogates are encoded one by one, and the others together. If that cannot
        divide them, because all or none have some, every text is encoded alone.
        """
        good = [is_unicode(text) for text in texts]
        if all(good) or not any(good):
            return [outcome for text in texts for outcome in self._encode_now([text])]
        together = iter(self._encode_now(list(compress(texts, good))))
        return [
            next(together) if fine else self._encode_now([text])[0]
            for text, fine in zip(texts, good, strict=True)
        ]

    def _finished(self, ids: list[int]) -> Prompt | Exception:
        try:
            return self._finish(ids)
        except Exception as error:  # of this text alone
            return error


def has_texts(texts: Any) -> bool:
    """Whether `texts` is a text, or a list of at least one text and nothing else."""
    if isinstance(texts, list):
        return bool(texts) and all(isinstance(text, str) for text in texts)
    return isinstance(texts, str)

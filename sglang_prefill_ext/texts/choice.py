"""Chooses the library that encodes: the fastest that is allowed, installed, and gives equal ids."""

from __future__ import annotations

import logging
from functools import partial
from importlib.metadata import version
from pathlib import Path

from sglang_prefill_ext.config import TokenizerChoice
from sglang_prefill_ext.texts import libraries, sample_texts
from sglang_prefill_ext.texts.comparison import Comparison, us_per_text
from sglang_prefill_ext.texts.comparison_file import key_of, processor, remembered
from sglang_prefill_ext.texts.comparison_process import NotComparedError, compare_in_child
from sglang_prefill_ext.texts.libraries import Encoder

logger = logging.getLogger(__name__)

GATE_TEXTS = 100_000
"""Texts on which a library is compared."""


class Choice:
    """Compares the allowed libraries with Hugging Face's, one after the other.

    This takes seconds for a library whose comparison is not on disk.

    Args:
        json: of the tokenizer.
        reference: Hugging Face's; it is chosen if no other passes, or none is faster.
        directory: where comparisons are kept.

    Attributes:
        best: the encoder to use.
        comparisons: of each library.
        speeds: time (µs) for a text of an ordinary request, for each library that may be used.
    """

    def __init__(
        self, choice: TokenizerChoice, json: str, reference: Encoder, directory: Path
    ) -> None:
        self._json, self._directory = json, directory
        self.best = reference
        self.comparisons: dict[str, Comparison] = {}
        self.speeds = {reference.name: us_per_text(reference)}
        for library in libraries.candidates(choice):
            self.comparisons[str(library)] = self._consider(library, choice == TokenizerChoice.AUTO)

    def _consider(self, library: TokenizerChoice, if_faster: bool) -> Comparison:
        comparison = self._comparison_of(library)
        if comparison.difference:
            # If no text was compared, the library does not support such tokenizers: no warning.
            level = logging.WARNING if comparison.texts else logging.INFO
            logger.log(
                level, "Tokenizer library %s is not used: %s", library, comparison.difference
            )
            return comparison
        logger.info("Tokenizer library %s: equal on %d texts", library, comparison.texts)
        encoder = libraries.load(library, self._json)
        self.speeds[str(library)] = speed = us_per_text(encoder)
        if not if_faster or speed < self.speeds[self.best.name]:
            self.best = encoder
        return comparison

    def _comparison_of(self, library: TokenizerChoice) -> Comparison:
        versions = (library, version(library), version("tokenizers"), str(sample_texts.EDITION))
        key = key_of(self._json, *versions, str(GATE_TEXTS), processor())
        compare = partial(compare_in_child, library, self._json, GATE_TEXTS)
        try:
            return remembered(self._directory, key, compare)
        except NotComparedError as error:  # nothing is remembered: the next start tries again
            return Comparison(f"not compared: {error}")

"""Which library encodes: the fastest of those that are wanted, there, and equal."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from sglang_prefill_ext.config import TokenizerChoice
from sglang_prefill_ext.texts import libraries
from sglang_prefill_ext.texts import sample_texts as texts
from sglang_prefill_ext.texts.comparison import Verdict, us_per_text
from sglang_prefill_ext.texts.comparison_file import key_of, processor, remembered
from sglang_prefill_ext.texts.comparison_process import NotJudgedError, judge_in_child
from sglang_prefill_ext.texts.encoder import Encoder

logger = logging.getLogger(__name__)

GATE_TEXTS = 100_000


class Choice:
    """The libraries that are wanted, judged one after the other.

    This takes seconds where no verdict is remembered.

    Args:
        json: of the tokenizer.
        reference: Hugging Face's; it is chosen where no other passes, or none is faster.
        directory: of the verdicts.
        count: texts to compare.
        judge: compares a library on these.

    Attributes:
        best: the encoder to use.
        verdicts: on each library.
        speeds: time (µs) for a text of an ordinary request, of each that may be used.
    """

    def __init__(
        self,
        choice: TokenizerChoice,
        json: str,
        reference: Encoder,
        directory: Path,
        count: int = GATE_TEXTS,
        judge: Callable[[TokenizerChoice, str, int], Verdict] = judge_in_child,
    ) -> None:
        self._json, self._directory, self._count, self._judge = json, directory, count, judge
        self.best = reference
        self.verdicts: dict[str, Verdict] = {}
        self.speeds = {reference.name: us_per_text(reference)}
        for library in libraries.candidates(choice):
            self.verdicts[str(library)] = self._consider(library, choice == TokenizerChoice.AUTO)

    def _consider(self, library: TokenizerChoice, if_faster: bool) -> Verdict:
        verdict = self._verdict_on(library)
        if verdict.difference:
            # Where nothing was compared, it just does not know such tokenizers.
            level = logging.WARNING if verdict.texts else logging.INFO
            logger.log(level, "Tokenizer library %s is not used: %s", library, verdict.difference)
            return verdict
        logger.info("Tokenizer library %s: equal on %d texts", library, verdict.texts)
        encoder = libraries.load(library, self._json)
        self.speeds[str(library)] = speed = us_per_text(encoder)
        if not if_faster or speed < self.speeds[self.best.name]:
            self.best = encoder
        return verdict

    def _verdict_on(self, library: TokenizerChoice) -> Verdict:
        versions = (library, libraries.version_of(library), version("tokenizers"))
        key = key_of(self._json, *versions, str(texts.EDITION), str(self._count), processor())
        try:
            return remembered(
                self._directory, key, lambda: self._judge(library, self._json, self._count)
            )
        except NotJudgedError as error:  # nothing is remembered: the next start tries again
            return Verdict(f"not judged: {error}")

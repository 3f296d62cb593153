"""Finds the fastest ways of encoding that give the same ids as the plain way."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from sglang_prefill_ext.config import PrefillOnlyConfig, Switch
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.texts.choice import Choice
from sglang_prefill_ext.texts.comparison import same, splice_difference, told
from sglang_prefill_ext.texts.frame import NO_FRAME, frame_of
from sglang_prefill_ext.texts.libraries import Encoder, TokenizerCopy, flat
from sglang_prefill_ext.texts.proof import boundaries_of, unproven
from sglang_prefill_ext.texts.sample_texts import texts
from sglang_prefill_ext.texts.settings import Settings, added_tokens, settings_of
from sglang_prefill_ext.texts.splice import Splice

logger = logging.getLogger(__name__)

_LOADING_TEXTS = 1_000
"""On so many texts a copy of the tokenizer must agree with the plain way before it is used."""


class Plain(Protocol):
    """Encodes texts, or pairs of texts, as the stock path does."""

    def __call__(
        self, texts: Sequence[str | tuple[str, str]], *, continued: bool = False
    ) -> list[list[int]]: ...


class Ways:
    """The ways of encoding that are in use: none until they are found, or after they differed.

    Args:
        plain, json, copy: see `TextEncoder`.

    Attributes:
        encoder: encodes whole texts; None where the plain way does, because of `why_plain`.
        frame: special tokens around the ids of `encoder`.
        splice: encodes shared text once; None where nothing does, because of `why_no_splice`.
        choice: the comparison of libraries; None before it has ended.
    """

    def __init__(
        self, plain: Plain, json: str, metrics: FrontendMetrics, copy: TokenizerCopy | None
    ) -> None:
        self.encoder: Encoder | None = None
        self.frame = NO_FRAME
        self.splice: Splice | None = None
        self.choice: Choice | None = None
        self.why_plain = self.why_no_splice = "" if json else "no fast tokenizer"
        self._plain, self._json, self._copy = plain, json, copy
        self._metrics = metrics
        self._choosing = threading.Lock()

    def find(self, config: PrefillOnlyConfig, directory: Path) -> None:
        """Find the fastest ways. This takes up to a second; longer if libraries are compared.

        Args:
            directory: where comparisons of libraries are kept.
        """
        try:
            settings = settings_of(self._json)
            added = added_tokens(settings)
            copy = self._faithful_copy(settings, added)
            if copy is None:
                return
            self.splice = self._checked_splice(settings, config, copy, added)
            self.encoder = copy  # only now, so that whoever distrusts it ends the splice, too
            self.choice = Choice(config.tokenizer, self._json, copy, directory)
            with self._choosing:
                if self.encoder is copy:  # otherwise it was found to differ in the meantime
                    self.encoder = self.choice.best
        except Exception as error:
            logger.exception("Looking for a faster way to encode texts failed")
            if self.encoder is None and not self.why_plain:
                self.why_plain = self.why_no_splice = told(error)

    def distrust_encoder(self, encoder: Encoder) -> None:
        """Encode the plain way from now on."""
        with self._choosing:
            self.encoder = None
        self.why_plain = self.why_no_splice = f"{encoder.name} differed while serving"
        self.splice = None
        self._mismatch("Texts are encoded the plain way from now on: %s", self.why_plain)

    def distrust_splice(self) -> None:
        """Encode whole texts from now on."""
        self.splice = None
        self.why_no_splice = "differed while serving"
        self._mismatch("Prefix splice is off from now on: it %s", self.why_no_splice)

    def _faithful_copy(self, settings: Settings, added: list[str]) -> Encoder | None:
        """Return a copy of the tokenizer if it agrees with the plain way."""
        copy = self._copy or TokenizerCopy(self._json)
        frame = frame_of(settings.get("post_processor"))
        if frame is None:
            self.why_plain = f"post-processor {settings['post_processor']['type']}"
        else:
            drawn = texts(_LOADING_TEXTS, added)
            if same(frame.around(copy.rows(drawn)), flat(self._plain(drawn))):
                self.frame = frame
                return copy
            self.why_plain = "a copy of the tokenizer differs from it"
        self.why_no_splice = self.why_plain
        logger.warning("Texts are encoded the plain way: %s", self.why_plain)
        return None

    def _checked_splice(
        self, settings: Settings, config: PrefillOnlyConfig, copy: Encoder, added: list[str]
    ) -> Splice | None:
        doubt = unproven(settings)
        if config.prefix_splice == Switch.OFF:
            self.why_no_splice = "turned off"
        elif doubt:
            self.why_no_splice = f"not proven: {doubt}"
        else:
            splice = Splice(boundaries_of(settings), self.frame)
            difference = splice_difference(splice, copy, added)
            if not difference:
                return splice
            self.why_no_splice = f"differs on {difference}"
            self._mismatch("Prefix splice is off: it %s", self.why_no_splice)
        return None

    def _mismatch(self, message: str, reason: str) -> None:
        self._metrics.count("encoding_mismatches")
        logger.error(message, reason)

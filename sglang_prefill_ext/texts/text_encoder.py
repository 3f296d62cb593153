"""Encodes all texts of one front-end process, each as SGLang would encode it."""

from __future__ import annotations

import json as json_format
import logging
import threading
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import msgspec

from sglang_prefill_ext.config import PrefillOnlyConfig, PrefixSplice
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.process.user_cache import cache_directory
from sglang_prefill_ext.texts.choice import Choice
from sglang_prefill_ext.texts.comparison import same, splice_difference
from sglang_prefill_ext.texts.frame import NO_FRAME, frame_of
from sglang_prefill_ext.texts.libraries import Encoder, TokenizerCopy, flat
from sglang_prefill_ext.texts.proof import boundaries_of, unproven
from sglang_prefill_ext.texts.sample_texts import texts
from sglang_prefill_ext.texts.splice import Splice
from sglang_prefill_ext.wire.arrays import NO_INTS, FlatRows, Int32Array
from sglang_prefill_ext.wire.checks import check_repeated

logger = logging.getLogger(__name__)

SAMPLED = 128
"""One call of this many, beginning with the first, is checked: it is encoded the plain way, too."""

_LOADING_TEXTS = 1_000
"""On so many texts a copy of the tokenizer must agree with the plain way before it is used."""


_SAMPLED_CHARACTERS = 1 << 16
"""Characters of the whole prompts that a check of a spliced call encodes, at least one prompt.

All of them may be many characters, because each whole prompt repeats the shared text.
"""


class Plain(Protocol):
    """Encodes texts, or pairs of texts, as the stock path does."""

    def __call__(
        self, texts: Sequence[str | tuple[str, str]], *, continued: bool = False
    ) -> list[list[int]]: ...


class TextEncoder:
    """Encodes by the fastest way that is known to give the ids of the plain way.

    The plain way encodes texts that the faster way cannot encode, and all texts until a faster way
    was checked, or after it was found to give other ids.

    Args:
        plain: encodes as the stock path does; all other ways must give the same ids.
        json: of the tokenizer; empty if it is none of Hugging Face's fast ones.
        directory: where comparisons of libraries are kept.
        copy: given if `plain` is the method of a copy already, to save the time and memory of
            another one. Threads can share it, because nothing changes it any more.
    """

    def __init__(
        self,
        plain: Plain,
        json: str,
        config: PrefillOnlyConfig,
        metrics: FrontendMetrics,
        directory: Path | None = None,
        copy: TokenizerCopy | None = None,
    ) -> None:
        self._plain = plain
        self._copy = copy
        self._metrics = metrics
        self._calls = count()
        self._frame = NO_FRAME
        self._splice: Splice | None = None
        self._why_plain = "" if json else "no fast tokenizer"
        self._why_no_splice = self._why_plain
        self._choice: Choice | None = None
        self._encoder: Encoder | None = None
        self._choosing = threading.Lock()
        args = (json, config, directory or cache_directory("tokenizers"))
        # No daemon: a thread that is killed inside of a library may crash the process.
        self._preparing = threading.Thread(
            target=self._prepare, args=args, name="prefill-only-tokenizer"
        )
        if json:
            self._preparing.start()

    def wait_until_ready(self, timeout_s: float) -> bool:
        """Wait until it is decided how texts are encoded; return whether it is."""
        if self._preparing.ident is not None:
            self._preparing.join(timeout_s)
        return not self._preparing.is_alive()

    def encode(
        self, texts: Sequence[str | tuple[str, str]], *, continued: bool = False
    ) -> list[list[int]]:
        """Encode all texts, or all pairs of texts; see `SchedulerLink`."""
        ids = self._encoded(self._encoder, texts, continued)
        return self._plain(texts, continued=continued) if ids is None else ids

    def encode_chat(self, text: str, *, continued: bool) -> list[int] | None:
        """Encode a rendered chat, in any thread; None unless `is_fast`, or the text is no Unicode.

        Args:
            continued: see `SchedulerLink.encode`.
        """
        ids = self._encoded(self._encoder if self.is_fast else None, [text], continued)
        if ids is None:
            return None
        self._metrics.count("chats")
        return ids[0]

    @property
    def is_fast(self) -> bool:
        """Whether a library faster than Hugging Face's encodes."""
        return not isinstance(self._encoder, TokenizerCopy | None)

    def encode_joined(
        self, shared: str, items: Sequence[str], *, item_first: bool
    ) -> tuple[Int32Array, FlatRows]:
        """Encode ``shared + item``, or ``item + shared``, of all items; see `SchedulerLink`.

        Raises:
            RequestError: see `check_repeated`.
        """
        encoder, splice, spliced = self._encoder, self._splice, None
        encode: Plain = self.encode
        if encoder is not None and splice is not None:
            try:
                spliced = splice.encode(encoder, shared, items, item_first=item_first)
            except BaseException:  # as in `_encoded`
                self._metrics.count("encoding_failures")
        if spliced is not None and self._is_sampled():
            few = _few(shared, items)
            expected = flat(self._plain(_whole(shared, items[:few], item_first)))
            if not same(spliced.whole(item_first=item_first, few=few), expected):
                self._distrust_splice()
                encode, spliced = self._plain, None
        if spliced is not None:
            self._metrics.count("spliced")
            return spliced.shared, spliced.rest
        check_repeated(shared, items)
        return NO_INTS, flat(encode(_whole(shared, items, item_first)))

    def status(self) -> dict[str, Any]:
        """What encodes and why, for the status page."""
        encoder, choice = self._encoder, self._choice
        comparisons = {} if choice is None else choice.comparisons
        return {
            "encoder": "plain" if encoder is None else encoder.name,
            "why_plain": self._why_plain,
            "ready": self.wait_until_ready(0),
            "libraries": {name: msgspec.structs.asdict(each) for name, each in comparisons.items()},
            "us_per_text": {} if choice is None else choice.speeds,
            "splice": self._splice is not None,
            "why_no_splice": self._why_no_splice,
        }

    def _encoded(
        self, encoder: Encoder | None, texts: Sequence[str | tuple[str, str]], continued: bool
    ) -> list[list[int]] | None:
        """Return the ids of texts; None where the plain way is to make them, or its error."""
        single = [text for text in texts if isinstance(text, str)]
        if encoder is None or len(single) != len(texts):
            return None
        try:
            rows = encoder.rows(single)
        except BaseException:  # also a panic in Rust; the plain way has the error that users know
            self._metrics.count("encoding_failures")
            return None
        ids = (rows if continued else self._frame.around(rows)).tolist()
        if self._is_sampled() and (expected := self._plain(texts, continued=continued)) != ids:
            self._distrust_encoder(encoder)
            return expected
        return ids

    def _prepare(self, json: str, config: PrefillOnlyConfig, directory: Path) -> None:
        """Find the fastest way while the process serves.

        This takes up to a second, and longer if libraries are compared.
        """
        try:
            settings = json_format.loads(json)
            added = [token["content"] for token in settings.get("added_tokens", ())]
            self._encoder = copy = self._faithful_copy(json, settings, added)
            if copy is None:
                return
            self._splice = self._checked_splice(settings, config, copy, added)
            self._choice = Choice(config.tokenizer, json, copy, directory)
            with self._choosing:
                if self._encoder is copy:  # otherwise it was found to differ in the meantime
                    self._encoder = self._choice.best
        except Exception:
            logger.exception("Looking for a faster way to encode texts failed")

    def _faithful_copy(
        self, json: str, settings: dict[str, Any], added: list[str]
    ) -> Encoder | None:
        """Return a copy of the tokenizer if it agrees with the plain way."""
        frame, copy = frame_of(settings.get("post_processor")), self._copy or TokenizerCopy(json)
        if frame is None:
            self._why_plain = f"post-processor {settings['post_processor']['type']}"
        else:
            drawn = texts(_LOADING_TEXTS, added)
            if same(frame.around(copy.rows(drawn)), flat(self._plain(drawn))):
                self._frame = frame
                return copy
            self._why_plain = "a copy of the tokenizer differs from it"
        self._why_no_splice = self._why_plain
        logger.warning("Texts are encoded the plain way: %s", self._why_plain)
        return None

    def _checked_splice(
        self, settings: dict[str, Any], config: PrefillOnlyConfig, copy: Encoder, added: list[str]
    ) -> Splice | None:
        doubt = unproven(settings)
        if config.prefix_splice == PrefixSplice.OFF:
            self._why_no_splice = "turned off"
        elif doubt:
            self._why_no_splice = f"not proven: {doubt}"
        else:
            splice = Splice(boundaries_of(settings), self._frame)
            difference = splice_difference(splice, copy, added)
            if not difference:
                return splice
            self._why_no_splice = f"differs on {difference}"
            self._mismatch("Prefix splice is off: it %s", self._why_no_splice)
        return None

    def _is_sampled(self) -> bool:
        return next(self._calls) % SAMPLED == 0

    def _distrust_encoder(self, encoder: Encoder) -> None:
        with self._choosing:
            self._encoder = None
        self._why_plain = self._why_no_splice = f"{encoder.name} differed while serving"
        self._splice = None
        self._mismatch("Texts are encoded the plain way from now on: %s", self._why_plain)

    def _distrust_splice(self) -> None:
        self._splice = None
        self._why_no_splice = "differed while serving"
        self._mismatch("Prefix splice is off from now on: it %s", self._why_no_splice)

    def _mismatch(self, message: str, reason: str) -> None:
        self._metrics.count("encoding_mismatches")
        logger.error(message, reason)


def _whole(shared: str, items: Sequence[str], item_first: bool) -> list[str]:
    return [item + shared if item_first else shared + item for item in items]


def _few(shared: str, items: Sequence[str]) -> int:
    """How many whole prompts have `_SAMPLED_CHARACTERS`; at least one."""
    longest = len(shared) + max(map(len, items))
    return max(1, _SAMPLED_CHARACTERS // max(1, longest))

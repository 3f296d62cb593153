"""Encodes all texts of one front-end process, each as SGLang would encode it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.process.user_cache import cache_directory
from sglang_prefill_ext.texts.comparison import same
from sglang_prefill_ext.texts.libraries import Encoder, TokenizerCopy, flat
from sglang_prefill_ext.texts.splice import whole_texts
from sglang_prefill_ext.texts.ways import Plain, Ways
from sglang_prefill_ext.wire.arrays import NO_INTS, FlatRows, Int32Array
from sglang_prefill_ext.wire.checks import check_repeated

SAMPLED = 128
"""One call of this many, beginning with the first, is checked: its first texts are encoded the
plain way, too. Spliced calls are counted apart."""

_SAMPLED_CHARACTERS = 1 << 16
"""Characters that a check encodes, at least one prompt.

The plain way takes seconds for all prompts of a large call, or for those of a spliced call, each of
which repeats the shared text.
"""

_LONGEST_CHECKED = 1 << 18
"""Characters of a prompt; a call with longer ones is not checked, as the plain way takes seconds
and gigabytes for one."""


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
        self._metrics = metrics
        self._whole_calls, self._spliced_calls = count(), count()
        self._ways = Ways(plain, json, metrics, copy)
        args = (config, directory or cache_directory("tokenizers"))
        # No daemon: a thread that is killed inside of a library may crash the process.
        self._finding = threading.Thread(
            target=self._ways.find, args=args, name="prefill-only-tokenizer"
        )
        if json:
            self._finding.start()

    def wait_until_ready(self, timeout_s: float) -> bool:
        """Wait until it is decided how texts are encoded; return whether it is."""
        if self._finding.ident is not None:
            self._finding.join(timeout_s)
        return not self._finding.is_alive()

    def encode(
        self, texts: Sequence[str | tuple[str, str]], *, continued: bool = False
    ) -> list[list[int]]:
        """Encode all texts, or all pairs of texts; see `SchedulerLink`."""
        ids = self._encoded(self._ways.encoder, texts, continued)
        return self._plain(texts, continued=continued) if ids is None else ids

    def encode_chat(self, text: str, *, continued: bool) -> list[int] | None:
        """Encode a rendered chat, in any thread; None unless `is_fast`, or the text is no Unicode.

        Args:
            continued: see `SchedulerLink.encode`.
        """
        ids = self._encoded(self._ways.encoder if self.is_fast else None, [text], continued)
        if ids is None:
            return None
        self._metrics.count("chats")
        return ids[0]

    @property
    def is_fast(self) -> bool:
        """Whether a library faster than Hugging Face's encodes."""
        return not isinstance(self._ways.encoder, TokenizerCopy | None)

    def encode_joined(
        self, shared: str, items: Sequence[str], *, item_first: bool
    ) -> tuple[Int32Array, FlatRows]:
        """Encode ``shared + item``, or ``item + shared``, of all items; see `SchedulerLink`.

        Raises:
            RequestError: see `check_repeated`.
        """
        encoder, splice, spliced = self._ways.encoder, self._ways.splice, None
        encode: Plain = self.encode
        if encoder is not None and splice is not None:
            try:
                spliced = splice.encode(encoder, shared, items, item_first=item_first)
            except RequestError:
                raise
            except BaseException:  # as in `_encoded`
                self._metrics.count("encoding_failures")
        if spliced is not None and (few := _checked(self._spliced_calls, shared, items)):
            expected = flat(self._plain(whole_texts(shared, items[:few], item_first)))
            if not same(spliced.whole(item_first=item_first, few=few), expected):
                self._ways.distrust_splice()
                encode, spliced = self._plain, None
        if spliced is not None:
            self._metrics.count("spliced")
            return spliced.shared, spliced.rest
        check_repeated(shared, items)
        return NO_INTS, flat(encode(whole_texts(shared, items, item_first)))

    def status(self) -> dict[str, Any]:
        """What encodes and why, for the status page."""
        ways = self._ways
        encoder, choice = ways.encoder, ways.choice
        comparisons = {} if choice is None else choice.comparisons
        return {
            "encoder": "plain" if encoder is None else encoder.name,
            "why_plain": ways.why_plain,
            "ready": self.wait_until_ready(0),
            "libraries": {name: msgspec.structs.asdict(each) for name, each in comparisons.items()},
            "us_per_text": {} if choice is None else choice.speeds,
            "splice": ways.splice is not None,
            "why_no_splice": ways.why_no_splice,
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
        ids = (rows if continued else self._ways.frame.around(rows)).tolist()
        few = _checked(self._whole_calls, "", single)
        if few and self._plain(single[:few], continued=continued) != ids[:few]:
            self._ways.distrust_encoder(encoder)
            return None
        return ids


def _checked(calls: Iterator[int], shared: str, items: Sequence[str]) -> int:
    """How many of the whole prompts of a call are checked; 0 unless it is one of `SAMPLED`.

    Args:
        calls: numbers of the calls that may be checked.
    """
    longest = len(shared) + max(map(len, items), default=0)
    if longest > _LONGEST_CHECKED or next(calls) % SAMPLED:
        return 0
    return max(1, _SAMPLED_CHARACTERS // max(1, longest))

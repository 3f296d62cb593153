"""What encodes texts in one session after the other."""

from __future__ import annotations

from sglang_prefill_ext.attach.messages import Facts
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.texts.libraries import faithful_copy
from sglang_prefill_ext.texts.text_encoder import TextEncoder


class SessionTexts:
    """Keeps the encoder of the last session, because engines come back with the same tokenizer.

    To read one takes up to a second, for which nothing else runs in the process.
    """

    def __init__(self, metrics: FrontendMetrics) -> None:
        self._metrics = metrics
        self._made_of: tuple[object, ...] = ()
        self._encoder: TextEncoder | None = None

    def encoder_for(self, facts: Facts) -> TextEncoder | None:
        """Return what encodes texts as an engine does; None where the engine has to.

        Raises:
            BaseException: whatever the tokenizer's library raises, also a panic in Rust.
        """
        made_of = facts.tokenizer, facts.probes, facts.config
        if made_of != self._made_of:
            self._encoder, self._made_of = self._encoder_of(facts), made_of
        return self._encoder

    def _encoder_of(self, facts: Facts) -> TextEncoder | None:
        copy = faithful_copy(facts.tokenizer, facts.probes)
        if copy is None:
            return None
        return TextEncoder(copy.encode, facts.tokenizer, facts.config, self._metrics, copy=copy)

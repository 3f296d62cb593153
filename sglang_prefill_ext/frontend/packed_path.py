"""What the front ends of one process have in common: their path, and what they say they served."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.frontend.exchange import PackedExchange, SchedulerLink, StockPathTaken
from sglang_prefill_ext.frontend.worker import Worker
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.wire.arrays import EmbeddingKind, Int32Array
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows
from sglang_prefill_ext.wire.prefix_policy import PrefixPolicy


@dataclass(frozen=True, slots=True)
class EncoderTraits:
    """What is special about calls to an encoder.

    Attributes:
        token_types: of tokens, such as those of the first and the second text of a pair. A token
            of type t has the packed id ``id + t * vocab_size``, so that whatever compares ids
            compares types, too.
        longest_prompt: tokens that have a position.
        makes_numbers: its head has one class, and so the answer is a number and no vector.
    """

    token_types: int
    longest_prompt: int
    makes_numbers: bool


@dataclass(frozen=True, slots=True)
class PackedPath:
    """The way of packed requests to a scheduler, and what is known of the model behind it.

    Attributes:
        vocab_size: rows of the embedding table; prompt ids must lie below.
        label_vocab_size: label ids must lie below; the tokenizer's size where there is one.
        embeddings: of the model.
        truncates: SGLang shortens prompts that are too long, and refuses none.
        watermarks: SGLang marks generated tokens, also of requests that do not ask for it.
        prefixes: see `shared_beginnings`.
        encoder: None where the model is none.
        answers: makes objects and texts of large answers.
    """

    link: SchedulerLink
    exchange: PackedExchange
    config: PrefillOnlyConfig
    metrics: FrontendMetrics
    vocab_size: int
    label_vocab_size: int
    embeddings: EmbeddingKind
    has_tokenizer: bool
    truncates: bool = True
    watermarks: bool = False
    prefixes: PrefixPolicy | None = None
    encoder: EncoderTraits | None = None
    answers: Worker = field(default_factory=lambda: Worker("prefill-only-answers"))

    def require_taken(self) -> None:
        """Raises: StockPathTaken: this process serves nothing on the packed path."""
        if self.exchange.declined_reason:
            raise StockPathTaken(self.exchange.declined_reason)

    def record(self, rows: PackedRows, answer: PackedResult) -> None:
        """Count a call that was answered by one packed request of its own."""
        self.metrics.record_packed()
        self.metrics.record_work(rows, answer.forwards, answer.tokens_computed)


@dataclass(frozen=True, slots=True)
class Served:
    """What there was to compute for a call, and what came of it.

    Attributes:
        prompt_tokens: of each prompt, int32 ``[prompts]``.
        cached_tokens: of these, what the prefix cache had, int32 ``[prompts]``.
        new_tokens: tokens that were generated behind each prompt.
        queue_s, compute_s: for how long a prompt waited in the scheduler, and how long its
            forwards took; of several the longest.
    """

    prompt_tokens: Int32Array
    cached_tokens: Int32Array
    new_tokens: int = 0
    queue_s: float = 0.0
    compute_s: float = 0.0

    @property
    def num_prompts(self) -> int:
        return len(self.prompt_tokens)


def served_rows(rows: PackedRows, answer: PackedResult) -> Served:
    """Every row is a prompt; what was cached is a part of the prefix, so of every row."""
    lens = rows.suffix_lens + np.int32(rows.prefix_len)
    cached = np.full_like(lens, min(answer.tokens_cached, rows.prefix_len))
    return Served(lens, cached, 0, answer.queue_ms / 1e3, answer.compute_ms / 1e3)

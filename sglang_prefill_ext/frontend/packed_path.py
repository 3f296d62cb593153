"""What all front ends of one process share: the link to the scheduler, and facts of the model."""

from __future__ import annotations

from dataclasses import dataclass, field

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.frontend.exchange import PackedExchange, StockPathTaken
from sglang_prefill_ext.frontend.scheduler_link import SchedulerLink
from sglang_prefill_ext.frontend.worker import Worker
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.wire.arrays import EmbeddingKind
from sglang_prefill_ext.wire.prefix_policy import PrefixPolicy


@dataclass(frozen=True, slots=True)
class EncoderTraits:
    """What is special about calls to an encoder.

    Attributes:
        token_types: number of token types, such as one for each text of a pair. A token of type t
            has the packed id ``id + t * vocab_size``, so code that compares ids compares types,
            too.
        longest_prompt: tokens of the longest prompt, for each of which the model has a position.
        makes_numbers: its head has one class, and so the answer is a number and no vector.
    """

    token_types: int
    longest_prompt: int
    makes_numbers: bool


@dataclass(frozen=True, slots=True)
class PackedPath:
    """The path of packed requests to a scheduler, and what is known of the model behind it.

    Attributes:
        vocab_size: rows of the embedding table; prompt ids must lie below.
        label_vocab_size: label ids must lie below; the tokenizer's size where there is one.
        embeddings: width and dtype of the model's.
        truncates: SGLang shortens prompts that are too long, and refuses none.
        watermarks: SGLang marks generated tokens, also of requests that do not ask for it.
        prefixes: see `shared_beginnings`.
        encoder: None if the model is no encoder.
        answers: a thread that makes Python objects and JSON of large answers.
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

"""Objects of SGLang that are made here as SGLang makes them, and what compares the two.

No signature tells when SGLang makes one of them otherwise: only the named tests do. Pure data.
"""

from __future__ import annotations

from typing import NamedTuple


class Imitation(NamedTuple):
    """One kind of object.

    Attributes:
        made_by: our module, without the package's name.
        stands_for: what SGLang would have made, and where it makes it.
        tests: names of test modules that compare it with SGLang's own.
    """

    made_by: str
    stands_for: str
    tests: tuple[str, ...]


IMITATIONS = (
    Imitation(
        "border.tokenizer_manager.token_output",
        "`BatchStrOutput`, the message of the detokenizer, with the fields of finished requests",
        ("test_tokens", "test_token_hooks"),
    ),
    Imitation(
        "border.tokenizer_manager.direct_generate",
        "the answer of `POST /generate`, which `TokenizerManager._handle_batch_output` makes",
        ("test_tokens", "test_fuzz"),
    ),
    Imitation(
        "border.tokenizer_manager.embed_hooks",
        "the answers of `TokenizerManager.generate_request` to embedding requests",
        ("test_embeddings", "test_fuzz"),
    ),
    Imitation(
        "border.tokenizer_manager.call_records",
        "`ReqState`, the record of a request, and what is logged, exported and dumped of it",
        ("test_production", "test_lifecycle"),
    ),
    Imitation(
        "border.tokenizer_manager.stock_counters",
        "what `TokenizerMetricsCollector` observes of a request that has ended",
        ("test_stock_metrics",),
    ),
    Imitation(
        "border.model.sampler",
        "`SamplingBatchInfo` of a prefill batch, with the tensors that the sampler reads",
        ("test_sampler", "test_tokens"),
    ),
    Imitation(
        "border.model.packed_batch",
        "`ForwardBatch` of an extend batch as models read it, and of one sequence for LoRA",
        ("test_families", "test_packed_batch"),
    ),
    Imitation(
        "border.scheduler.ask_both_paths",
        "a prefill batch of the scheduler, by which the known prompts are asked on SGLang's path",
        ("test_known_answers",),
    ),
    Imitation(
        "border.scheduler.srpt_policy",
        "`SchedulePolicy`, whose order of the waiting queue it replaces",
        ("test_stock_order",),
    ),
)

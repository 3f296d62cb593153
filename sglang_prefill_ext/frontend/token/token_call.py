"""Generation calls that end with the prompt: its log-probs, and at most one token."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from sglang_prefill_ext.wire.arrays import Int32Array
from sglang_prefill_ext.wire.reads import values_per_read
from sglang_prefill_ext.wire.sampling import Sampling

_USUAL_SEED = 42
"""SGLang's where a request has none; only with --enable-deterministic-inference it is used."""


class TokenRequest(Protocol):
    """What is read of a `TokenizedGenerateReqInput`, see there."""

    @property
    def input_ids(self) -> Sequence[int]: ...
    @property
    def sampling_params(self) -> Any: ...
    @property
    def return_logprob(self) -> bool: ...
    @property
    def logprob_start_len(self) -> int: ...
    @property
    def top_logprobs_num(self) -> int: ...
    @property
    def token_ids_logprob(self) -> list[int] | None: ...
    @property
    def lora_id(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class TokenCall:
    """What is wanted of one prompt.

    Attributes:
        ids: tokens of the prompt, at least one.
        start: the first token whose successor's log-prob is wanted; None for the last token only.
        num_top: most probable tokens that are wanted at every read.
        token_ids: tokens whose log-probs are wanted at every read; None without the question.
        generates: whether one token is generated.
        sampling: how the last token's successor is drawn, of one row; None where the most
            probable one is taken, and log-probs are the model's.
        adapter: see `PackedRows`.
    """

    ids: Int32Array
    start: int | None
    num_top: int
    token_ids: tuple[int, ...] | None
    generates: bool
    sampling: Sampling | None = None
    adapter: str = ""

    @property
    def num_best(self) -> int:
        """`Labels.num_best` that answers the call."""
        has_labels = self.start is not None or bool(self.token_ids)
        if self.generates or self.sampling is not None or self.num_top or not has_labels:
            return 1 + self.num_top
        return 0

    @property
    def num_values(self) -> int:
        """Numbers that are read for the call."""
        reads = 1 if self.start is None else len(self.ids) - self.start
        labels = (self.start is not None) + len(self.token_ids or ())
        return reads * values_per_read(labels, self.num_best)


def token_call_of(request: TokenRequest, stop_tokens: Collection[int]) -> TokenCall:
    """Read an eligible request.

    Args:
        stop_tokens: those that would end it, as far as the model has them.
    """
    wants = bool(request.return_logprob)
    start = request.logprob_start_len if wants else -1
    within = 0 <= start < len(request.input_ids)
    ids = request.token_ids_logprob if wants else None
    return TokenCall(
        ids=np.array(request.input_ids, dtype=np.int32),
        start=start if within else None,
        num_top=request.top_logprobs_num if wants else 0,
        token_ids=None if ids is None else tuple(ids),
        generates=bool(request.sampling_params.max_new_tokens),
        sampling=_sampling_of(request.sampling_params, stop_tokens),
        adapter=request.lora_id or "",
    )


def _sampling_of(params: Any, stop_tokens: Collection[int]) -> Sampling | None:
    """Read SGLang's parameters, which it has filled in and checked.

    Penalties of frequency, presence and repetition look at generated tokens, so the first one has
    none.
    """
    biases = {int(token): value for token, value in (params.logit_bias or {}).items()}
    if params.min_new_tokens:
        biases |= dict.fromkeys(stop_tokens, -math.inf)
    draws = params.max_new_tokens and params.top_k != 1
    if not draws and not biases:
        return None
    return Sampling.one(
        temperature=params.temperature,
        top_p=params.top_p,
        min_p=params.min_p,
        top_k=params.top_k if draws else 1,
        seed=_USUAL_SEED if params.sampling_seed is None else params.sampling_seed,
        biases=biases,
    )

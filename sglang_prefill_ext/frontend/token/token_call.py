"""Generation calls that ask only for log-probs of the prompt and at most one token.

The checks are also for calls that SGLang serves: they refuse numbers that would end its scheduler.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from sglang_prefill_ext.frontend.token.first_tokens import FirstTokens
from sglang_prefill_ext.wire.arrays import Int32Array
from sglang_prefill_ext.wire.checks import wrong
from sglang_prefill_ext.wire.reads import values_per_read
from sglang_prefill_ext.wire.sampling import Sampling

_USUAL_SEED = 42
"""SGLang's seed for a request without one; used only with --enable-deterministic-inference."""


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """The fields that are used of a `TokenizedGenerateReqInput`, which can be given instead."""

    input_ids: Sequence[int]
    sampling_params: Any
    return_logprob: bool
    logprob_start_len: int
    top_logprobs_num: int
    token_ids_logprob: list[int] | None
    lora_id: str | None = None


@dataclass(frozen=True, slots=True)
class TokenCall:
    """What is wanted of one prompt.

    Attributes:
        ids: tokens of the prompt, at least one.
        start: the first token whose successor's log-prob is wanted; None for the last token only.
        num_top: how many most probable tokens are wanted at every read.
        token_ids: tokens whose log-probs are wanted at every read; None if not asked for.
        generates: whether one token is generated.
        sampling: how the next token is drawn, of one row; None if the most probable one is taken,
            and log-probs are the model's.
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
    def first_read(self) -> int:
        """Position of the first token that is read; all behind it are, too."""
        return len(self.ids) - 1 if self.start is None else self.start

    @property
    def num_labels(self) -> int:
        """Labels of every read: its successor in the prompt, then the `token_ids`."""
        return int(self.start is not None) + len(self.token_ids or ())

    @property
    def num_best(self) -> int:
        """`Labels.num_best` that answers the call."""
        if self.generates or self.sampling is not None or self.num_top or not self.num_labels:
            return 1 + self.num_top
        return 0

    @property
    def num_values(self) -> int:
        """Numbers that are read for the call."""
        reads = len(self.ids) - self.first_read
        return reads * values_per_read(self.num_labels, self.num_best)


def token_call_of(
    request: TokenRequest, stop_tokens: Collection[int], first: FirstTokens | None = None
) -> TokenCall:
    """Read an eligible request.

    Args:
        stop_tokens: tokens that would end the generation, without those that the model lacks.
        first: tokens that its grammar allows; None if it has none.
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
        sampling=_sampling_of(request.sampling_params, stop_tokens, first),
        adapter=request.lora_id or "",
    )


def _sampling_of(
    params: Any, stop_tokens: Collection[int], first: FirstTokens | None
) -> Sampling | None:
    """Read SGLang's parameters, which it has filled in and checked.

    Penalties of frequency, presence and repetition look at the tokens generated so far, so they do
    not change the first one.
    """
    biases = {int(token): value for token, value in (params.logit_bias or {}).items()}
    if params.min_new_tokens:
        biases |= dict.fromkeys(stop_tokens, -math.inf)
    draws = params.max_new_tokens and params.top_k != 1
    if not draws and not biases and first is None:
        return None
    of_some, of_others = (biases, 0.0) if first is None else first.restrict(biases)
    return Sampling.one(
        temperature=params.temperature,
        top_p=params.top_p,
        min_p=params.min_p,
        top_k=params.top_k if draws else 1,
        seed=_USUAL_SEED if params.sampling_seed is None else params.sampling_seed,
        biases=of_some,
        other_bias=of_others,
    )


_LARGEST_TOP_K = 2**31 - 1  # SGLang puts them into tensors of 32 bits


def check_numbers(
    vocab_size: int,
    *,
    top_logprobs_num: int | list[int] | None = 0,
    logprob_start_len: int | list[int] | None = -1,
    top_k: object = -1,
) -> None:
    """Refuse numbers of a request for one prompt that SGLang's scheduler cannot handle.

    Args:
        vocab_size: of the model.
        top_logprobs_num, logprob_start_len: SGLang does not refuse lists, which are for many
            prompts.
        top_k: what is no number is left to SGLang, which ignores it in a greedy call.

    Raises:
        RequestError: names the field, the value and the remedy.
    """
    if isinstance(top_logprobs_num, list | None) or top_logprobs_num > vocab_size:
        raise wrong(
            "top_logprobs_num", f"{top_logprobs_num} is no number up to {vocab_size}; send one."
        )
    if isinstance(logprob_start_len, list | None) or logprob_start_len < -1:
        raise wrong(
            "logprob_start_len",
            f"{logprob_start_len} is no place in the prompt; send one, or -1 for none.",
        )
    if isinstance(top_k, int | float) and top_k > _LARGEST_TOP_K:
        raise wrong("top_k", f"{top_k} is too large; send -1 for the whole vocabulary.")


def check_processor(given: Any) -> None:
    """Refuse what SGLang's scheduler cannot read as a custom logit processor; None is none.

    The code in it is not loaded.

    Raises:
        RequestError: it is not one JSON object with bytes in hexadecimal digits as `callable`.
    """
    if given is None:
        return
    try:
        bytes.fromhex(msgspec.json.decode(given)["callable"])
    except (msgspec.DecodeError, RecursionError, KeyError, TypeError, ValueError):
        raise wrong(
            "custom_logit_processor",
            f"{given!r:.80} is no processor; send the text of its to_str(), one for one prompt.",
        ) from None


def check_readout(positions: object, tokens: int | None, *, in_one_piece: bool) -> None:
    """Refuse invalid positions; and all positions, if SGLang may compute a prompt in several parts.

    Args:
        positions: a request's `token_indices_to_pool`.
        tokens: number of the prompt's tokens; None if not known yet.
        in_one_piece: the server computes every prompt from its first token to its last at once.

    Raises:
        RequestError: names the field, the value and the remedy.
    """
    field, last = "token_indices_to_pool", 2**63 - 1 if tokens is None else tokens - 1
    if not isinstance(positions, list) or not positions:
        raise wrong(field, f"{positions!r:.80} is no list of positions; send one, or leave it out.")
    for each in positions:
        if not isinstance(each, int) or not 0 <= each <= last:
            raise wrong(field, f"{each!r:.80} is no position; valid ones are 0 to {last}.")
    if not in_one_piece:
        raise wrong(
            field,
            "positions are those of whole prompts. Start the server with --disable-radix-cache "
            "--chunked-prefill-size -1, and without --allow-auto-truncate.",
        )

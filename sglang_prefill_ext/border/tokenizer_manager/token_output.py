"""Writes answers of packed calls as the messages that SGLang's front end gets.

They come from its detokenizer, or without a tokenizer from its scheduler, and then have no text.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, TypeAlias

from sglang.srt.managers.io_struct import BatchStrOutput, BatchTokenIDOutput
from sglang.srt.observability.req_time_stats import SchedulerReqTimeStats
from sglang.srt.parser.reasoning_parser import ReasoningParser
from sglang.srt.runtime_context import get_serving
from sglang.srt.utils.weight_versions import WeightVersionSpan

from sglang_prefill_ext.frontend.batch_exchange import ReadOut
from sglang_prefill_ext.frontend.token.token_answer import TokenAnswer, first_text
from sglang_prefill_ext.wire.arrays import Int32Array

_Output: TypeAlias = BatchStrOutput | BatchTokenIDOutput

_LISTS = tuple(field.name for field in fields(TokenAnswer) if field.name != "token")

_FOR_DETOKENIZER: dict[str, Any] = dict.fromkeys(
    (
        *("decoded_texts", "decode_ids", "read_offsets"),
        *("skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim"),
    ),
    (),
)
"""Fields of SGLang's message that only its detokenizer reads."""


@dataclass(frozen=True, slots=True)
class ReasoningCount:
    """Whether SGLang's scheduler counts the one token of an answer as reasoning.

    Attributes:
        end: tokens that end the reasoning; empty if the server has no parser of reasoning, or its
            tokenizer does not encode what ends it.
        opening: the token with which the model begins to reason unasked; None if it never does so,
            or not by a single token.
        filters: while a request reasons, SGLang forbids some tokens.
    """

    end: tuple[int, ...] = ()
    opening: int | None = None
    filters: bool = False

    def of(self, token: int | None, *, required: bool) -> int:
        """Return the count for an answer.

        Args:
            token: None if none was generated. SGLang then counts one that it does not show.
            required: the request says that its answer begins with reasoning.
        """
        if required:
            return int(bool(self.end))
        return int(token is not None and token == self.opening)


def reasoning_count(tokenizer: Any) -> ReasoningCount:
    """How the server of this process counts, by its flags.

    Args:
        tokenizer: None if the server has none.
    """
    serving = get_serving()
    if not serving.reasoning_parser or tokenizer is None:
        return ReasoningCount()
    parser = ReasoningParser(serving.reasoning_parser, stream_reasoning=False, tokenizer=tokenizer)
    end = parser.detector.get_think_end_token_ids(tokenizer)
    if not end:
        return ReasoningCount()
    begin = parser.detector.get_self_opened_think_start_token_ids(tokenizer) or []
    opening = begin[0] if len(begin) == 1 else None
    return ReasoningCount(tuple(end), opening, filters=bool(serving.enable_strict_thinking))


def finished(
    manager: Any, request: Any, answer: TokenAnswer, read_out: ReadOut, reasoning: ReasoningCount
) -> _Output:
    """The answer to a tokenized request that was read just now."""
    sampling = request.sampling_params
    stops = stop_tokens(manager, sampling)
    reason, text = ending(manager, sampling, stops, request.input_ids, answer.token)
    output = _message(manager, request, answer, reason, text, read_out.cached_tokens)
    output.time_stats = [scheduler_times(read_out, time.perf_counter())]
    required = bool(request.require_reasoning)
    output.reasoning_tokens = [reasoning.of(answer.token, required=required)]
    return output


def scheduler_times(read_out: ReadOut, end_s: float) -> SchedulerReqTimeStats:
    """The scheduler's time stamps for a prompt whose forward ended at `end_s` (`perf_counter`)."""
    return SchedulerReqTimeStats(
        forward_entry_time=end_s - read_out.compute_s,
        prefill_finished_time=end_s,
        queue_duration_s=read_out.queue_s,
        storage_prefetch_wait_s=0.0,
        storage_staging_wait_s=0.0,
    )


def ending(
    manager: Any,
    sampling: Any,
    stops: Collection[int],
    prompt: Sequence[int] | Int32Array,
    token: int | None,
) -> tuple[dict[str, Any], str]:
    """Return why a generation ends after `token`, and the text that the token adds to the prompt.

    Without a tokenizer the text is empty.

    Args:
        sampling: SGLang's parameters.
        stops: `stop_tokens` of them.
        token: None where none was wanted.
    """
    length = {"type": "length", "length": sampling.max_new_tokens}
    if token is None:
        return length, ""
    stop = _stop_string(manager.tokenizer, sampling.stop_strs, token)
    ends = stop is None and not sampling.ignore_eos and token in stops
    text = ""
    if manager.tokenizer is not None and (not ends or sampling.no_stop_trim):
        text = first_text(
            manager.tokenizer,
            prompt,
            token,
            skip_special=sampling.skip_special_tokens,
            spaces=sampling.spaces_between_special_tokens,
        )
    if stop is not None:
        at = text.find(stop)  # -1 where the text of the token alone is another one
        if at >= 0:
            text = text[: at + len(stop)] if sampling.no_stop_trim else text[:at]
        return {"type": "stop", "matched": stop}, text
    return ({"type": "stop", "matched": token} if ends else length), text


def _stop_string(tokenizer: Any, stops: Sequence[str], token: int) -> str | None:
    """The stop string that SGLang's scheduler finds in a token; None if it finds none."""
    if not stops:
        return None
    text = tokenizer.decode([token])
    return next((each for each in stops if each in text), None)


def aborted(manager: Any, request: Any, message: str, status: int) -> _Output:
    """The answer to a tokenized request that ends with an error, which has an HTTP status."""
    reason = {"type": "abort", "message": message, "status_code": status, "err_type": None}
    return _message(manager, request, TokenAnswer(), reason, "", 0)


def _message(
    manager: Any,
    request: Any,
    answer: TokenAnswer,
    reason: dict[str, Any],
    text: str,
    cached_tokens: int,
) -> _Output:
    ids = [] if answer.token is None else [answer.token]
    version = manager.config_value("weight_version")
    lists = {name: [getattr(answer, name)] for name in _LISTS}
    output: Callable[..., _Output] = BatchStrOutput
    if manager.tokenizer is None:
        output = BatchTokenIDOutput
        lists |= _FOR_DETOKENIZER
    else:
        lists["output_strs"] = [text]
    return output(
        rids=[request.rid],
        finished_reasons=[reason],
        output_ids=[array("q", ids)],
        prompt_tokens=[len(request.input_ids)],
        completion_tokens=[len(ids)],
        reasoning_tokens=[0],
        cached_tokens=[cached_tokens],
        **lists,
        output_token_entropy_val=None,
        output_token_sampling_mask=None,
        output_hidden_states=None,
        routed_experts=None,
        indexer_topk=None,
        placeholder_tokens_idx=None,
        placeholder_tokens_val=None,
        retraction_counts=[0],
        weight_versions=[[WeightVersionSpan(version=version, start=0, end=len(ids))]],
        cached_tokens_details=[cached_details(cached_tokens)],
        dp_ranks=[None],
        spec_verify_ct=[0],
    )


def cached_details(cached_tokens: int) -> dict[str, int] | None:
    """Where the cached tokens of a prompt were, in SGLang's form; None if there are none."""
    return {"device": cached_tokens, "host": 0} if cached_tokens else None


def stop_tokens(manager: Any, sampling: Any) -> set[int]:
    """Tokens after which SGLang's scheduler ends a generation."""
    model, tokenizer = manager.model_config, manager.tokenizer
    named = {
        *(() if tokenizer is None else _tokenizer_stops(tokenizer)),
        *(sampling.stop_token_ids or ()),
        *(model.hf_eos_token_id or ()),
    }
    return {each for each in named if each is not None and 0 <= each < model.vocab_size}


@lru_cache(maxsize=1)  # the tokenizer looks them up by their names each time
def _tokenizer_stops(tokenizer: Any) -> tuple[int | None, ...]:
    more = getattr(tokenizer, "additional_stop_token_ids", None) or ()
    return (tokenizer.eos_token_id, *more)

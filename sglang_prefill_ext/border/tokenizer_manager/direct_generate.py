"""Answers plain bodies of ``POST /generate`` without SGLang's record of each request.

For every prompt SGLang makes a request object, a copy of it with tokens, a state, and a message
like the detokenizer's. For one token that takes longer than the forward of a small model. Where
nobody can see these objects, they are left out. SGLang's own code still reads and checks the
sampling parameters, and the answer has all of SGLang's fields.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection
from functools import lru_cache, partial
from typing import Any, NamedTuple

from sglang.srt.environ import Envs

from sglang_prefill_ext.border.tokenizer_manager.adapters import admitted_adapter
from sglang_prefill_ext.border.tokenizer_manager.call_context import CallContext, counted
from sglang_prefill_ext.border.tokenizer_manager.server import PrefillServer
from sglang_prefill_ext.border.tokenizer_manager.token_output import (
    cached_details,
    ending,
    scheduler_times,
    stop_tokens,
)
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.batch_exchange import ReadOut, served_prompts
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.token.generate_api import (
    GenerateBody,
    answer_body,
    logprob_fields,
    sampling_arguments,
)
from sglang_prefill_ext.frontend.token.token_answer import answer_of, token_of
from sglang_prefill_ext.frontend.token.token_call import TokenCall, TokenRequest, check_numbers
from sglang_prefill_ext.frontend.token.token_frontend import TokenFrontend
from sglang_prefill_ext.wire.checks import check_prompt
from sglang_prefill_ext.wire.stock_reason import StockReason

_LONGEST_KEPT = 1 << 16
"""Bytes of sampling parameters; longer ones, such as stop strings of megabytes, are not kept."""


class _Ended(NamedTuple):
    """A prompt that was read, why it ends, and the text that its token adds."""

    call: TokenCall
    read_out: ReadOut
    reason: dict[str, Any]
    text: str


class DirectGenerate:
    """Serves those requests of one manager that need no record."""

    def __init__(self, server: PrefillServer, frontend: TokenFrontend) -> None:
        self._manager = server.manager
        self._server = server
        self._frontend = frontend
        self._records = server.records
        self._vocab_size: int = server.manager.model_config.vocab_size
        # Clients repeat the same parameters, and SGLang's object of them is only read here.
        self._checked_sampling = lru_cache(maxsize=64)(self._check_sampling)
        self._reads_headers: bool = Envs.SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES.get()

    async def answer(self, body: GenerateBody, context: CallContext) -> bytes | None:
        """Return the body of the answer; None if SGLang is to serve the request.

        Raises:
            PrefillExtError: one of `HTTP_ANSWERED`, which is an `HTTPException` as well.
        """
        if self._wants_more() or not body.needs_no_request_state:
            return None
        with counted(self._frontend.path.metrics, context, requests=len(body.prompts)):
            try:
                return await self._answer(body, context)
            except (StockPathTaken, RequestError, UnicodeError):
                return None  # SGLang finds, and counts, the same errors

    async def _answer(self, body: GenerateBody, context: CallContext) -> bytes:
        context.raise_if_opted_out()
        options, request = context.options(self._frontend.path.config), context.request
        sampling, stops = self._sampling(body)
        exchange, name = self._frontend.path.exchange, body.lora_path or ""
        with self._records.keeping(request, len(body.prompts), dict) as record:
            async with admitted_adapter(self._manager, exchange, name, options, request) as adapter:
                calls = []
                for ids in await self._prompts(body, request):
                    prompt = self._prompt(body, sampling, ids, adapter)
                    first = await self._server.grammars.first_tokens(
                        sampling, ids, request, options.deadline_ms
                    )
                    calls.append(self._frontend.call_of(prompt, stops, first))
                record.times.set_api_server_dispatch_finish_time()
                read_outs = await self._frontend.read_all(calls, options, request)
            lens, new_tokens = [len(call.ids) for call in calls], int(calls[0].generates)
            record.served = served_prompts(lens, read_outs, new_tokens=new_tokens)
        ended = []
        for call, read_out in zip(calls, read_outs, strict=True):
            token = token_of(call, read_out.table)
            reason, text = ending(self._manager, sampling, stops, call.ids, token)
            ended.append(_Ended(call, read_out, reason, text))
        write = partial(self._written, body, record.times, ended)
        numbers = sum(call.num_values for call in calls)
        return await self._frontend.path.answers.run_if_large(numbers, write)

    def _wants_more(self) -> bool:
        """Whether this server shows requests, or answers with more than is known here."""
        manager = self._manager
        return bool(
            manager.enable_trace
            or self._records.shows_requests
            or manager.server_args.speculative_algorithm  # answers tell how it went
            or manager.preferred_sampling_params
            or self._reads_headers  # they name requests, too
        )

    def _sampling(self, body: GenerateBody) -> tuple[Any, Collection[int]]:
        """SGLang's parameters, and the tokens that stop a generation; SGLang refuses wrong ones."""
        num_top, top_k = body.top_logprobs_num or 0, body.sampling_params.top_k or 0
        try:
            check_numbers(self._vocab_size, top_logprobs_num=num_top, top_k=top_k)
            key = body.sampling_key
            is_kept = len(key) <= _LONGEST_KEPT
            return self._checked_sampling(key) if is_kept else self._check_sampling(key)
        except ValueError as error:
            raise StockPathTaken(StockReason.UNUSUAL_INPUT) from error

    def _check_sampling(self, key: bytes) -> tuple[Any, Collection[int]]:
        """See `_sampling`; for a `GenerateBody.sampling_key`."""
        sampling = self._manager.sampling_params_class(**sampling_arguments(key))
        sampling.normalize(self._manager.tokenizer)
        sampling.verify(self._vocab_size)
        return sampling, stop_tokens(self._manager, sampling)

    async def _prompts(self, body: GenerateBody, request: Any) -> list[list[int]]:
        """Raises: StockPathTaken: its texts cannot be encoded."""
        prompts = body.prompts
        if not isinstance(prompts[0], str):
            return prompts
        if self._server.texts is None:
            raise StockPathTaken(StockReason.UNUSUAL_INPUT)
        try:
            return await self._server.texts.ask(prompts, request)
        except ValueError as error:  # of the tokenizer
            raise StockPathTaken(StockReason.UNUSUAL_INPUT) from error

    def _prompt(
        self, body: GenerateBody, sampling: Any, ids: list[int], adapter: str
    ) -> TokenRequest:
        """Raises: StockPathTaken, RequestError: the prompt is not plainly right."""
        check_prompt(ids, self._frontend.path.vocab_size, field="input_ids")
        prompt = _prompt_of(body, sampling, ids, adapter)
        if prompt.token_ids_logprob is not None:
            check_prompt(prompt.token_ids_logprob, self._vocab_size, field="token_ids_logprob")
        return prompt

    def _written(self, body: GenerateBody, times: Any, ended: list[_Ended]) -> bytes:
        """The body of the answer; may be called in any thread."""
        answers = [self._fields(body, times, each) for each in ended]
        return answer_body(answers, is_single=body.is_single)

    def _fields(self, body: GenerateBody, times: Any, ended: _Ended) -> dict[str, Any]:
        call, read_out, reason, text = ended
        cached = read_out.cached_tokens
        answer = answer_of(call, read_out.table, vocab_size=self._vocab_size)
        output_ids = [] if answer.token is None else [answer.token]
        version = self._manager.config_value("weight_version")
        of_scheduler, of_frontend, logprobs = {}, {}, {}
        if self._manager.enable_metrics:
            read_times = scheduler_times(read_out, times.finished_time)
            of_scheduler = read_times.convert_to_output_meta_info()
            of_frontend = times.convert_to_output_meta_info(None, len(output_ids))
        if body.wants_logprobs:
            logprobs = logprob_fields(answer, num_top=call.num_top, token_ids=call.token_ids)
        meta_info = {
            "id": uuid.uuid4().hex,
            "finish_reason": reason,
            "prompt_tokens": len(call.ids),
            "weight_version": version,
            "num_retractions": 0,
            **of_scheduler,
            **logprobs,
            "reasoning_tokens": self._server.reasoning.of(answer.token, required=False),
            "completion_tokens": len(output_ids),
            "cached_tokens": cached,
            "weight_versions": [{"version": version, "start": 0, "end": len(output_ids)}],
            "cached_tokens_details": cached_details(cached),
            "dp_rank": None,
            "e2e_latency": times.get_e2e_latency(),
            **of_frontend,
            "response_sent_to_client_ts": time.time(),
        }
        fields = {"output_ids": output_ids, "meta_info": meta_info}
        return fields if self._manager.tokenizer is None else {"text": text} | fields


def _prompt_of(body: GenerateBody, sampling: Any, ids: list[int], adapter: str) -> TokenRequest:
    """Fill in SGLang's defaults; SGLang is to judge numbers outside of the prompt."""
    start = body.logprob_start_len if isinstance(body.logprob_start_len, int) else -1
    num_top = body.top_logprobs_num if isinstance(body.top_logprobs_num, int) else 0
    listed = body.token_ids_logprob if isinstance(body.token_ids_logprob, list) else None
    if not -1 <= start <= len(ids) or num_top < 0:
        raise StockPathTaken(StockReason.UNUSUAL_INPUT)
    asked = body.wants_logprobs, start, num_top, listed
    return TokenRequest(ids, sampling, *asked, lora_id=adapter)

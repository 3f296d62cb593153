"""Scoring requests: packed here, or handed to the engine as calls."""

from __future__ import annotations

import numpy as np

from sglang_prefill_ext.attach.session import Session
from sglang_prefill_ext.frontend.answers import flat_scores
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.score.score_call import ScoreCall
from sglang_prefill_ext.frontend.score.score_frontend import ScoreFrontend
from sglang_prefill_ext.grpc_frontend import prefill_pb2 as pb
from sglang_prefill_ext.grpc_frontend.outcomes import counted
from sglang_prefill_ext.grpc_frontend.questions import CallOptions, ScoreQuestion, stock_arguments
from sglang_prefill_ext.wire.arrays import int_array, values_to_bytes
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows
from sglang_prefill_ext.wire.stock_reason import StockReason

_DOUBLES = np.dtype("<f8")


class Scoring:
    """Scores for one session with the engine."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._frontend = ScoreFrontend(session.path)

    async def score(self, question: ScoreQuestion, options: CallOptions) -> pb.ScoreResponse:
        """Serve a request.

        Raises:
            PrefillExtError: it is wrong, or ended badly.
        """
        call = question.call
        try:
            with counted(self._session.path.metrics):
                self._frontend.check_limits(call)
                call = question.whole()
                return await self._packed(call, options)
        except StockPathTaken as stock:
            return await self._by_engine(stock.call or call, options, stock.reason)

    async def _packed(self, call: ScoreCall, options: CallOptions) -> pb.ScoreResponse:
        if options.stock:
            raise StockPathTaken(StockReason.OPTED_OUT)
        if not self._session.facts.is_generation:
            raise StockPathTaken(StockReason.NOT_GENERATION)
        return _response(call, *await self._frontend.ask(call, options.scheduling))

    async def _by_engine(
        self, call: ScoreCall, options: CallOptions, reason: StockReason
    ) -> pb.ScoreResponse:
        answer = await self._session.stock_scores(stock_arguments(call), options.headers())
        logprobs = answer.token_logprobs
        return pb.ScoreResponse(
            scores=np.array([x for row in answer.rows for x in row], _DOUBLES).tobytes(),
            counts=int_array([len(row) for row in answer.rows]).tobytes(),
            token_logprobs=np.array([x for row in logprobs or () for x in row], "<f4").tobytes(),
            usage=pb.Usage(prompt_tokens=answer.prompt_tokens, path=pb.PATH_ENGINE, reason=reason),
        )


def _response(call: ScoreCall, rows: PackedRows, answer: PackedResult) -> pb.ScoreResponse:
    values = answer.row_values()
    scores = flat_scores(
        values, rows.read, apply_softmax=call.apply_softmax, temperature=call.temperature
    )
    return pb.ScoreResponse(
        scores=scores.astype(_DOUBLES).tobytes(),
        counts=rows.read.lens_of(0, rows.num_reads).tobytes(),
        token_logprobs=values_to_bytes(values) if call.return_token_logprobs else b"",
        usage=pb.Usage(
            prompt_tokens=rows.num_prompt_tokens,
            computed_tokens=answer.tokens_computed,
            cached_tokens=min(answer.tokens_cached, rows.prefix_len),
            path=pb.PATH_PACKED,
        ),
    )

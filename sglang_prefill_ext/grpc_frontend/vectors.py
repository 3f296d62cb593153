"""Calls for vectors: packed here, or handed to the engine as calls."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.attach.session import Session
from sglang_prefill_ext.frontend.embed.embed_call import EmbedCall
from sglang_prefill_ext.frontend.embed.embed_frontend import EmbedFrontend
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.grpc_frontend import prefill_pb2 as pb
from sglang_prefill_ext.grpc_frontend.outcomes import counted
from sglang_prefill_ext.grpc_frontend.questions import CallOptions
from sglang_prefill_ext.wire.arrays import FlatRows, Int32Array
from sglang_prefill_ext.wire.checks import check_prompt
from sglang_prefill_ext.wire.flat import check_ids
from sglang_prefill_ext.wire.read import WHOLE_VECTOR
from sglang_prefill_ext.wire.stock_reason import StockReason


class Vectors:
    """Vectors for one session with the engine: embeddings, class logits, rewards."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._frontend = EmbedFrontend(session.path)

    async def vectors(
        self, prompts: list[str] | FlatRows, dimensions: int, options: CallOptions, adapter: str
    ) -> tuple[NDArray[np.float32], pb.Usage]:
        """Return the vectors of prompts, float32 ``[prompts, width]``.

        Args:
            dimensions: leading numbers of each vector; 0 for all.
            adapter: name of a LoRA adapter, in the place of which the engine puts its id; empty
                for none.

        Raises:
            PrefillExtError: the call is wrong, or ended badly.
        """
        try:
            with counted(self._session.path.metrics):
                self._frontend.check_limits(len(prompts), field="prompts")
                return await self._packed(prompts, dimensions, options, adapter)
        except StockPathTaken as stock:
            left = stock.call or prompts
            return await self._by_engine(left, dimensions, options, adapter, stock.reason)

    async def _packed(
        self, prompts: list[str] | FlatRows, dimensions: int, options: CallOptions, adapter: str
    ) -> tuple[NDArray[np.float32], pb.Usage]:
        if reason := self._declined(dimensions, options):
            raise StockPathTaken(reason)
        ids = await self._token_ids(prompts)
        try:
            found = await self._frontend.vectors(
                ids, WHOLE_VECTOR, options.scheduling, None, adapter=adapter
            )
        except StockPathTaken as taken:  # the engine need not encode texts again
            raise StockPathTaken(taken.reason, [each.tolist() for each in ids]) from None
        usage = pb.Usage(prompt_tokens=sum(map(len, ids)), path=pb.PATH_PACKED)
        return np.stack([each.table for each in found]), usage

    async def _by_engine(
        self,
        prompts: list[str] | list[list[int]] | FlatRows,
        dimensions: int,
        options: CallOptions,
        adapter: str,
        reason: StockReason,
    ) -> tuple[NDArray[np.float32], pb.Usage]:
        plain = prompts.tolist() if isinstance(prompts, FlatRows) else prompts
        answer = await self._session.stock_vectors(
            plain, dimensions or None, adapter, options.headers()
        )
        usage = pb.Usage(prompt_tokens=answer.prompt_tokens, path=pb.PATH_ENGINE, reason=reason)
        return np.array(answer.rows, dtype=np.float32), usage

    def _declined(self, dimensions: int, options: CallOptions) -> StockReason | None:
        if options.stock:
            return StockReason.OPTED_OUT
        if self._session.facts.is_generation:
            return StockReason.NO_VECTORS
        if dimensions:
            return StockReason.DIMENSIONS  # which ones a model allows is the engine's knowledge
        return self._session.exchange.declined_reason

    async def _token_ids(self, prompts: list[str] | FlatRows) -> list[Int32Array]:
        if isinstance(prompts, list):
            call = EmbedCall(prompts, is_single=False, dimensions=None)
            return await self._frontend.encoder.token_ids(call, None)
        vocab_size = self._session.facts.vocab_size
        if not prompts.counts.all():
            check_prompt([], vocab_size, field="prompts")
        check_ids(prompts.values, vocab_size, field="prompts")
        return prompts.rows()

"""Finds the tokens that an answer may begin with, by the grammar of a request.

SGLang's scheduler compiles a grammar, and asks it before every token which ones it allows. Before
the first token its answer is the same for all prompts, so that a front end can give it for requests
that generate no further one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from sglang.srt.constrained.base_grammar_backend import (
    BaseGrammarBackend,
    InvalidGrammarObject,
    create_grammar_backend,
)
from sglang.srt.runtime_context import get_exec

from sglang_prefill_ext.frontend.client_wait import while_connected, within
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.token.first_tokens import FirstTokens
from sglang_prefill_ext.frontend.worker import Worker
from sglang_prefill_ext.wire.stock_reason import StockReason

logger = logging.getLogger(__name__)

_WITH_BITMASKS = ("xgrammar", "llguidance")
"""SGLang's backends that give one bit for each token, in int32."""

_KEYS = {
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "ebnf",
    "structural_tag": "structural_tag",
}
"""SGLang's sampling parameters that give a grammar, and its names of the languages."""

GRAMMARS = tuple(_KEYS)

_Key: TypeAlias = tuple[str, str]
"""The language and the text of a grammar, as SGLang's scheduler names them."""

_MOST_KNOWN = 256
"""Grammars whose first tokens are remembered; after so many, all are forgotten."""

_LONGEST = 1 << 16
"""Characters of a grammar; longer ones are left to SGLang, as they are not remembered."""

_MOST_COMPILE_S = 10.0
"""A grammar that takes longer is left to SGLang's scheduler, so that others go on."""

_THREADS = 4
"""Grammars that are compiled at a time, so that few slow ones do not keep others waiting."""


class Grammars:
    """The grammars of one front-end process. The first one takes longer: it reads the vocabulary.

    Args:
        manager: SGLang's tokenizer manager.
        reasoning_end: tokens that end the reasoning of an answer; empty if the server parses none.
    """

    def __init__(self, manager: Any, reasoning_end: tuple[int, ...]) -> None:
        self._manager, self._reasoning_end = manager, reasoning_end
        has_bitmasks = get_exec().kernel.grammar_backend in _WITH_BITMASKS
        self._are_readable = has_bitmasks and manager.tokenizer is not None
        self._backend: BaseGrammarBackend | None = None
        self._known: dict[_Key, FirstTokens | None] = {}
        self._learning: dict[_Key, asyncio.Future[None]] = {}
        self._making = threading.Lock()
        self._worker = Worker("prefill-only-grammars", threads=_THREADS)

    async def first_tokens(
        self, sampling: Any, ids: Sequence[int], client: Any, deadline_ms: float | None
    ) -> FirstTokens | None:
        """The tokens that an answer may begin with, unless with reasoning; None for no grammar.

        Args:
            sampling: SGLang's parameters of the request.
            ids: its prompt.
            client, deadline_ms: see `while_connected` and `within`.

        Raises:
            StockPathTaken: SGLang refuses the grammar or needs long for it; it is too long, or
                allows too many; or no token is generated.
            ServerBusyError: too many grammars wait already.
            RequestAbortedError, DeadlineExceededError: the client left, or the deadline passed.
        """
        grammar = grammar_of(sampling)
        if grammar is None:
            return None
        # Where no token is generated, SGLang shows the log-probs of one nevertheless.
        if not sampling.max_new_tokens or len(grammar[1]) > _LONGEST:
            raise StockPathTaken(StockReason.GRAMMAR)
        if self._are_readable and self._key(grammar, ids) not in self._known:
            async with within(deadline_ms, "before its grammar was read"), while_connected(client):
                await self._learnt(grammar, ids)
        key = self._key(grammar, ids)
        first = None if key is None else self._known.get(key)
        if first is None:
            raise StockPathTaken(StockReason.GRAMMAR)
        return first

    def _key(self, grammar: _Key, ids: Sequence[int]) -> _Key | None:
        """SGLang's name of a grammar behind a prompt; None as long as there is no backend."""
        if self._backend is None:
            return None
        key: _Key = self._backend.get_request_grammar_key(
            grammar, input_ids=ids, thinking_budget=None
        )
        return key

    async def _learnt(self, grammar: _Key, ids: Sequence[int]) -> None:
        """Wait until the grammar is known. Calls with the same grammar wait together."""
        learning = self._learning.get(grammar)
        if learning is None:
            work = self._worker.run(self._learn, grammar, ids)
            learning = self._learning[grammar] = asyncio.ensure_future(work)
            learning.add_done_callback(lambda _: self._learning.pop(grammar))
        await asyncio.shield(learning)

    def _learn(self, grammar: _Key, ids: Sequence[int]) -> None:
        """Called in one of the threads."""
        with self._making:
            if self._backend is None:
                manager, model = self._manager, self._manager.model_config
                self._backend = create_grammar_backend(
                    *(manager.server_args, manager.tokenizer, model.vocab_size),
                    model.hf_eos_token_id,
                    think_end_ids=self._reasoning_end,
                )
        backend, key, first = self._backend, self._key(grammar, ids), None
        if backend is None or key is None:  # SGLang cannot read the tokenizer
            return
        try:
            first = self._read(backend, key)
        except Exception as error:
            logger.warning("The first tokens of a grammar are unknown; SGLang serves it: %r", error)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[key] = first

    def _read(self, backend: BaseGrammarBackend, key: _Key) -> FirstTokens | None:
        future, _ = backend.get_cached_or_future_value(key, False)
        grammar = future.result(timeout=_MOST_COMPILE_S)
        # It would keep every grammar; one for servers that parse reasoning has another inside.
        getattr(backend, "grammar_backend", backend).reset()
        if isinstance(grammar, InvalidGrammarObject):
            return None
        size = self._manager.model_config.vocab_size
        # Not by the grammar, which takes pinned memory and so a part of the GPU's.
        mask = torch.full((1, -(-size // 32)), -1, dtype=torch.int32)
        grammar.fill_vocab_mask(mask, 0)
        bits = np.unpackbits(mask[0].numpy().view(np.uint8), bitorder="little")
        return FirstTokens.of(bits[:size].astype(bool))


def grammar_of(sampling: Any) -> _Key | None:
    """A request's grammar; None if it has none.

    Args:
        sampling: SGLang's parameters, of which one at most is set.
    """
    for field, language in _KEYS.items():
        if text := getattr(sampling, field):
            whole = language == "ebnf" and sampling.ebnf_full_assistant
            return ("full_assistant_ebnf" if whole else language), text
    return None

"""Counts the tokens of an answer that SGLang's scheduler counts as reasoning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglang.srt.parser.reasoning_parser import ReasoningParser
from sglang.srt.runtime_context import get_serving


@dataclass(frozen=True, slots=True)
class ReasoningCount:
    """How the one token of a packed answer is counted.

    Attributes:
        knows_end: the server has a parser of reasoning, and its tokenizer encodes what ends it.
        opening: the token with which the model begins to reason unasked; None if it never does so,
            or not by a single token.
        filters: while a request reasons, SGLang forbids some tokens.
    """

    knows_end: bool = False
    opening: int | None = None
    filters: bool = False

    def of(self, token: int | None, *, required: bool) -> int:
        """Return the count for an answer.

        Args:
            token: None if none was generated. SGLang then counts one that it does not show.
            required: the request says that its answer begins with reasoning.
        """
        if required:
            return int(self.knows_end)
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
    if not parser.detector.get_think_end_token_ids(tokenizer):
        return ReasoningCount()
    begin = parser.detector.get_self_opened_think_start_token_ids(tokenizer) or []
    opening = begin[0] if len(begin) == 1 else None
    return ReasoningCount(True, opening, filters=bool(serving.enable_strict_thinking))

"""Numbers in generation requests that would end SGLang's scheduler, refused before that."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sglang_prefill_ext.wire.checks import wrong

_LARGEST_TOP_K = 2**31 - 1  # SGLang puts them into tensors of 32 bits


@dataclass(frozen=True, slots=True)
class TokenNumbers:
    """What a request for one prompt asks for, under SGLang's names.

    Attributes:
        top_logprobs_num, logprob_start_len: SGLang lets lists pass that belong to many prompts.
    """

    top_logprobs_num: int | list[int] | None = 0
    logprob_start_len: int | list[int] | None = -1
    top_k: int = -1
    min_new_tokens: int = 0
    stop_token_ids: Collection[int] = ()

    def check(self, vocab_size: int) -> None:
        """Refuse what SGLang cannot answer with so many tokens to choose from.

        Raises:
            RequestError: names the field, the value and the remedy.
        """
        top, start = self.top_logprobs_num, self.logprob_start_len
        if isinstance(top, list | None) or top > vocab_size:
            raise wrong("top_logprobs_num", f"{top} is no number up to {vocab_size}; send one.")
        if isinstance(start, list | None) or start < -1:
            raise wrong(
                "logprob_start_len", f"{start} is no place in the prompt; send one, or -1 for none."
            )
        if self.top_k > _LARGEST_TOP_K:
            raise wrong("top_k", f"{self.top_k} is too large; send -1 for the whole vocabulary.")
        for token in self.stop_token_ids if self.min_new_tokens > 0 else ():
            if not 0 <= token < vocab_size:
                raise wrong(
                    "stop_token_ids",
                    f"{token} beside min_new_tokens; valid ids are 0 to {vocab_size - 1}.",
                )


def check_readout(positions: object, tokens: int | None, *, in_one_piece: bool) -> None:
    """Refuse positions to read that are none, or that SGLang would look for in a part of a prompt.

    Args:
        positions: a request's `token_indices_to_pool`.
        tokens: of the prompt; None if they are not counted yet.
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

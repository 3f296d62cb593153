"""Requests that SGLang's scheduler would not survive are refused, by what the server is like."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers.io_struct import GenerateReqInput

from sglang_prefill_ext.border.tokenizer_manager import prompt_checks
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.wire.arrays import EmbeddingKind

KIND = EmbeddingKind(2, "bfloat16", False)


def manager(preferred: dict[str, Any] | None) -> Any:
    args = SimpleNamespace(
        disable_radix_cache=False, chunked_prefill_size=8192, allow_auto_truncate=False
    )
    return SimpleNamespace(preferred_sampling_params=preferred, server_args=args)


@pytest.mark.parametrize(
    ("preferred", "asked", "read"),
    [
        (None, {"max_new_tokens": 0}, True),
        ({"max_new_tokens": 0}, {}, True),
        ({"max_new_tokens": 0}, {"max_new_tokens": 1}, False),
        (None, {}, False),
    ],
)
def test_positions_are_read_where_nothing_is_generated_also_by_the_servers_preference(
    preferred: dict[str, Any] | None, asked: dict[str, Any], read: bool
) -> None:
    request = GenerateReqInput(
        input_ids=[5, 6, 7], token_indices_to_pool=[1], sampling_params=asked
    )
    if read:
        with pytest.raises(RequestError, match="--disable-radix-cache"):
            prompt_checks._check_readout(manager(preferred), request, [5, 6, 7])
    else:
        prompt_checks._check_readout(manager(preferred), request, [5, 6, 7])


def test_a_turn_of_a_session_takes_no_prompt_of_embeddings() -> None:
    request = GenerateReqInput(input_embeds=[[0.5, 0.5]], session_params={"id": "s"})
    with pytest.raises(RequestError, match="input_embeds: a turn of a session"):
        prompt_checks._check_embeds_of(request, KIND)
    request.session_params = None
    prompt_checks._check_embeds_of(request, KIND)

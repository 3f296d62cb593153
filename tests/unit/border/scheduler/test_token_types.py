"""Every token of an encoder's batch has a type, whether or not its request has types."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_prefill_ext.border.scheduler.token_types import type_all_tokens


@pytest.mark.parametrize(
    ("types", "lens", "wanted"),
    [
        ([None, None], [2, 3], None),
        ([[0, 1], [0, 0, 1]], [2, 3], [0, 1, 0, 0, 1]),
        ([None, [0, 1], None], [2, 2, 1], [0, 0, 0, 1, 0]),
        ([[0, 1, 1], [0, 1]], [1, 2], [0, 0, 1]),  # the first is refused as too long
    ],
)
def test_tokens_without_a_type_get_the_first_and_others_keep_theirs(
    types: list[Any], lens: list[int], wanted: list[int] | None
) -> None:
    requests = [SimpleNamespace(token_type_ids=each) for each in types]
    batch = SimpleNamespace(
        reqs=requests, extend_lens=lens, extend_num_tokens=sum(lens), is_prefill_only=True
    )
    joined = [kind for each in types if each is not None for kind in each]  # as SGLang does it
    stock = torch.tensor(joined) if joined else None
    forward_batch = SimpleNamespace(token_type_ids=stock)
    type_all_tokens(None, forward_batch, batch)
    found = forward_batch.token_type_ids
    assert (found if found is None else found.tolist()) == wanted


def test_a_batch_that_generates_is_left_as_it_is() -> None:
    forward_batch = SimpleNamespace(token_type_ids=torch.tensor([0, 1]))
    type_all_tokens(None, forward_batch, SimpleNamespace(is_prefill_only=False))
    assert forward_batch.token_type_ids.tolist() == [0, 1]

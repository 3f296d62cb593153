"""Packed calls, answered together and taken apart, are compared with each call alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.config import PrefixCaching
from sglang_prefill_ext.frontend.token.token_answer import answer_of, first_text
from sglang_prefill_ext.frontend.token.token_batch import ReadKind, pack_calls
from sglang_prefill_ext.frontend.token.token_call import TokenCall
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.prefix_policy import PrefixPolicy
from sglang_prefill_ext.wire.sampling import Sampling
from tests.unit.frontend.token.token_requests import VOCAB, heated, log_probs, values_of
from tests.unit.wire.strategies import sampling_params

TOKENS = st.integers(0, VOCAB - 1)


@st.composite
def calls_of_one_kind(draw: st.DrawFn) -> list[TokenCall]:
    beginning = draw(st.sampled_from([[], [3] * 5, [6] * 40, [4] * 140, [5] * 300]))
    reads_prompt, generates = draw(st.booleans()), draw(st.booleans())
    num_top = draw(st.integers(0, 2))
    token_ids = draw(st.none() | st.lists(TOKENS, min_size=1, max_size=2).map(tuple))
    sampled, calls = generates and draw(st.booleans()), []
    for own in draw(st.lists(st.lists(TOKENS, min_size=1, max_size=4), min_size=1, max_size=5)):
        prompt = (beginning if draw(st.integers(0, 4)) else []) + own
        start = draw(st.integers(0, len(prompt) - 1)) if reads_prompt else None
        sampling = None
        if sampled:
            sampling = Sampling.one(**draw(sampling_params()))
        ids = int_array(prompt)
        calls.append(TokenCall(ids, start, num_top, token_ids, generates, sampling))
    return calls


@given(calls_of_one_kind(), st.booleans())
def test_every_call_gets_the_answer_that_it_gets_alone(
    calls: list[TokenCall], repeated: bool
) -> None:
    found = {}
    kind, policy = ReadKind.of(calls[0]), PrefixPolicy(PrefixCaching.REPEATED, 1)
    if repeated:
        pack_calls(calls, kind, policy)
    for group in pack_calls(calls, kind, policy):
        values = np.array(values_of(group.rows), dtype=np.float32)
        found.update(zip(group.members, group.tables(values), strict=True))
    assert sorted(found) == list(range(len(calls)))
    for number, call in enumerate(calls):
        answer = answer_of(call, found[number], vocab_size=1_000)
        prompt = call.ids.tolist()
        tables = [log_probs(prompt[: place + 1]) for place in range(len(prompt))]
        if call.start is None:
            assert answer.input_token_logprobs_val == answer.input_top_logprobs_val == []
        else:
            later = range(call.start + 1, len(prompt))
            wanted = [float(tables[place - 1][prompt[place]]) for place in later]
            assert answer.input_token_logprobs_val == [None, *wanted]
            assert answer.input_token_logprobs_idx == prompt[call.start :]
            assert answer.input_top_logprobs_idx[1:] == [
                np.argsort(-tables[place - 1], kind="stable")[: call.num_top].tolist()
                for place in later
            ]
            listed = list(call.token_ids or ())
            assert answer.input_token_ids_logprobs_val[1:] == [
                tables[place - 1][listed].tolist() for place in later
            ]
        last, token = tables[-1], int(tables[-1].argmax())
        if call.sampling is not None:
            last = heated(last, call.sampling.draws["temperature"][0])
            token = int(last.argmin())
        assert answer.token == (token if call.generates else None)
        if call.generates:
            assert answer.output_token_logprobs_val == [float(last[token])]
            assert answer.output_token_logprobs_idx == [token]
        assert answer.output_token_ids_logprobs_val == [last[list(call.token_ids or ())].tolist()]
        assert answer.output_token_ids_logprobs_idx == [list(call.token_ids or ())]
        order = np.argsort(-last, kind="stable")[: call.num_top]
        assert answer.output_top_logprobs_idx == [order.tolist()]
        assert answer.output_top_logprobs_val == [last[order].tolist()]


def call(prompt: list[int], start: int | None) -> TokenCall:
    return TokenCall(int_array(prompt), start, 0, None, generates=False)


@pytest.mark.parametrize("start", [None, 0])
def test_calls_are_computed_with_their_adapter(start: int | None) -> None:
    asked = replace(call([1, 2, 3], start), token_ids=(4,), adapter="a")
    (group,) = pack_calls([asked], ReadKind.of(asked))
    assert group.rows.adapter == "a"


def test_calls_that_draw_share_no_request_with_others() -> None:
    draw = Sampling.one(temperature=1.0, top_p=1.0, min_p=0.0, top_k=4, seed=1, biases={})
    plain = call([1, 2], None)
    assert [ReadKind.of(each).draws for each in (plain, replace(plain, sampling=draw))] == [
        False,
        True,
    ]


def test_what_several_prompts_read_of_their_prefix_is_read_once() -> None:
    prompts = [[1] * 200 + [5], [1] * 200 + [6, 7]]
    (group,) = pack_calls([call(p, 150) for p in prompts], ReadKind(True, (), 0))
    rows = group.rows
    # One token less is shared: what follows the last token of the prefix differs from row to row.
    assert (rows.prefix_len, rows.prefix_reads, rows.read_lens.tolist()) == (199, 49, [2, 3])
    assert rows.read.ids.tolist() == [1] * 49 + [5, 0] + [6, 7, 0]


@pytest.mark.parametrize(
    ("calls", "start", "prefix", "reads"), [(2, 190, 190, 0), (2, 150, 199, 49), (9, 190, 199, 9)]
)
def test_few_reads_of_the_prefix_are_made_for_each_prompt(
    calls: int, start: int, prefix: int, reads: int
) -> None:
    """So that a cache may have the prefix."""
    prompts = [[1] * 200 + [5 + number] for number in range(calls)]
    (group,) = pack_calls([call(p, start) for p in prompts], ReadKind(True, (), 0))
    assert (group.rows.prefix_len, group.rows.prefix_reads) == (prefix, reads)
    assert group.rows.read_lens.tolist() == [201 - max(prefix, start)] * calls


def test_where_nothing_is_read_of_the_prefix_all_of_it_is_shared() -> None:
    prompts = [[1] * 200 + [5], [1] * 200 + [6, 7]]
    (group,) = pack_calls([call(p, 200) for p in prompts], ReadKind(True, (), 0))
    assert (group.rows.prefix_len, group.rows.read_lens.tolist()) == (200, [1, 2])
    (group,) = pack_calls([call(p, None) for p in prompts], ReadKind(False, (4,), 0))
    assert group.rows.reads_row_ends


def test_the_last_token_of_the_vocabulary_is_named_0_as_in_sglang() -> None:
    prompt = call([VOCAB - 1, 3], 0)
    answer = answer_of(prompt, np.zeros((2, 1), dtype=np.float32), vocab_size=VOCAB)
    assert answer.input_token_logprobs_idx == [0, 3]


@pytest.mark.parametrize(("prompt", "expected"), [([], "B"), ([1, 2, 3, 4, 5, 6], "-B")])
def test_the_text_of_a_token_is_what_it_adds(prompt: list[int], expected: str) -> None:
    class Tokenizer:
        """Puts a hyphen between tokens."""

        def decode(self, ids: list[int], **how: bool) -> str:
            assert len(ids) <= 6
            assert how == {"skip_special_tokens": True, "spaces_between_special_tokens": False}
            return "-".join("ABCDEFGH"[each] for each in ids)

    for ids in (prompt, int_array(prompt)):
        assert first_text(Tokenizer(), ids, 1, skip_special=True, spaces=False) == expected


@pytest.mark.parametrize("token", [-1, 3, 999])
@pytest.mark.parametrize("said", [{"__len__": lambda _: 3}, {"vocab_size": 3}])
def test_tokens_that_the_tokenizer_does_not_know_are_its_first(said: Any, token: int) -> None:
    def decode(_: Any, ids: list[int], **_how: bool) -> str:
        return "".join("ABC"[each] for each in ids)

    tokenizer = type("Tokenizer", (), said | {"decode": decode})()
    assert first_text(tokenizer, [2, 700], token, skip_special=True, spaces=True) == "A"


def test_the_text_of_a_token_hangs_on_the_tokenizer_and_on_what_is_shown() -> None:
    class Tokenizer:
        def __init__(self, text: str) -> None:
            self._text = text

        def decode(self, ids: list[int], **how: bool) -> str:
            return self._text * (len(ids) + sum(how.values()))

    first, second = Tokenizer("a"), Tokenizer("bc")
    for _ in range(2):
        assert first_text(first, [5], 1, skip_special=True, spaces=True) == "a"
        assert first_text(second, [5], 1, skip_special=True, spaces=True) == "bc"
        assert first_text(second, [5], 1, skip_special=False, spaces=True) == "bc"


def test_what_a_cache_may_know_of_a_lone_prompt_is_not_read() -> None:
    prompt = [1] * 300
    for start, prefix in ((None, 299), (200, 200), (0, 0)):
        kind = ReadKind(start is not None, (4,), 0)
        (group,) = pack_calls([call(prompt, start)], kind, PrefixPolicy(PrefixCaching.REPEATED, 1))
        assert (group.rows.prefix_len, group.rows.prefix_reads) == (prefix, 0)

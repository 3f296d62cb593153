from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sglang_prefill_ext.errors import (
    DeadlineExceededError,
    PackedForwardError,
    RequestError,
    ServerBusyError,
)
from sglang_prefill_ext.frontend import worker
from sglang_prefill_ext.frontend.embed import embed_frontend
from sglang_prefill_ext.frontend.embed.embed_call import EmbedCall
from sglang_prefill_ext.frontend.embed.embed_frontend import EmbedFrontend
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.frontend.packed_path import EncoderTraits
from sglang_prefill_ext.frontend.prompt_batch import pack_prompts
from sglang_prefill_ext.wire.arrays import EmbeddingKind
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows
from sglang_prefill_ext.wire.read import VECTOR_AND_STATE, WHOLE_VECTOR
from sglang_prefill_ext.wire.stock_reason import StockReason
from tests.unit.frontend.links import PathSetup, answered_meanwhile, stub_answer

VOCAB = 300
IDS = EmbedCall([[1, 2, 3], [1, 2, 4, 5]], is_single=False, dimensions=None)
TEXTS = EmbedCall(["ab", "ac"], is_single=False, dimensions=None)
PLAIN = RequestOptions()


def count_tokens(rows: PackedRows) -> PackedResult:
    """Answers each prompt with a vector of one number, its number of tokens."""
    lens = rows.suffix_lens + rows.prefix_len
    return stub_answer(values=lens.tolist(), tokens_computed=len(rows.tokens))


class Setup(PathSetup):
    """A front end whose scheduler answers at once."""

    def __init__(
        self, answer: PackedResult | Callable[[PackedRows], PackedResult], **settings: Any
    ) -> None:
        super().__init__(**({"embeddings": EmbeddingKind(2, "float32")} | settings))
        self.frontend = EmbedFrontend(self.path)
        self.answer(answer)

    async def embed(self, *calls: EmbedCall, options: RequestOptions = PLAIN) -> list[Any]:
        """Concurrent calls, each with its result or its error."""
        asked = (self.frontend.embed(call, options, None) for call in calls)
        return await asyncio.gather(*asked, return_exceptions=True)


async def test_calls_with_embeddings_of_their_own_go_apart() -> None:
    setup = Setup(count_tokens)
    table = np.array([[0.5, 1.0], [0.5, 2.0]], np.float32)
    at = SimpleNamespace(positions=[0, 2], embeds=table)
    call = EmbedCall([[1, 2, 3], [4]], False, None, positional=[at, None])
    first, second, plain = await setup.embed(call, call, IDS)
    assert first.vectors == second.vectors == [[3], [1]]
    assert plain.vectors == [[3], [4]]
    packed = [rows for _, rows in setup.link.sent if len(rows.overrides)]
    assert len(packed) == len(setup.link.sent) - 1 == 2
    for rows in packed:
        assert rows.tokens.tolist() == [-1, 2, -2, 4]
        assert rows.overrides.tolist() == table.tolist()


CROSS_ENCODER = EncoderTraits(token_types=2, longest_prompt=512, makes_numbers=True)


async def test_a_head_of_one_class_answers_with_numbers() -> None:
    setup = Setup(count_tokens, encoder=CROSS_ENCODER)
    embedded = await setup.frontend.embed(IDS, PLAIN, None)
    assert embedded.vectors == [3.0, 4.0]


async def test_only_pairs_have_types() -> None:
    setup = Setup(count_tokens, encoder=CROSS_ENCODER)
    setup.link.encode = lambda texts, **_: [[1, VOCAB + 2]] * len(texts)  # type: ignore[method-assign]
    pair, text = EmbedCall([("a", "b")], True, None), EmbedCall(["a"], True, None)
    typed, refused = await setup.embed(pair, text)
    assert typed.vectors == [2.0]
    assert isinstance(refused, RequestError)
    assert setup.link.sent[0][1].tokens.tolist() == [1, VOCAB + 2]


async def test_an_encoder_takes_no_embeddings() -> None:
    setup = Setup(count_tokens, encoder=CROSS_ENCODER)
    at = SimpleNamespace(positions=[0], embeds=np.zeros((1, 2), np.float32))
    (taken,) = await setup.embed(EmbedCall([[1, 2]], False, None, positional=[at]))
    assert isinstance(taken, StockPathTaken)
    assert taken.reason == "embed_overrides"


async def test_vectors_of_several_tokens_are_read_in_one_request() -> None:
    places = [[1, 2], [3]]
    setup = Setup(stub_answer(values=[1, 2, 3, 4, 5, 6]))
    call = replace(IDS, places=places, adapter="a")
    async with setup.exchange.admitted(PLAIN):
        embedded = await setup.frontend.embed(call, PLAIN, None)
    assert embedded.vectors == [[[1, 2], [3, 4]], [[5, 6]]]
    rows = setup.sent_rows()
    # What the prompts share ends before the first token that is read.
    assert (rows.prefix_len, rows.tokens.tolist()) == (1, [1, 2, 3, 2, 4, 5])
    assert (rows.read_lens.tolist(), rows.read.wanted.tolist()) == ([2, 1], [1, 1, 1])
    assert (rows.read.width, rows.adapter) == (WHOLE_VECTOR, "a")
    assert setup.metrics.as_dict()["items"] == 2
    assert setup.is_idle()


async def test_states_of_several_tokens_come_apart_from_their_vectors() -> None:
    setup = Setup(stub_answer(values=range(9)))
    call = replace(IDS, places=[[0, 2], [3]], with_states=True)
    embedded = await setup.frontend.embed(call, PLAIN, None)
    assert embedded.vectors == [[[0], [3]], [[6]]]
    assert [each.tolist() for each in embedded.states or []] == [[[1, 2], [4, 5]], [[7, 8]]]


async def test_embeddings_stand_at_places_that_are_read() -> None:
    setup = Setup(stub_answer(values=[1.0, 2.0]))
    call = EmbedCall([[7], [5, 7]], False, None, placeholder=7, places=[[0], [1]])
    await setup.frontend.embed(replace(call, embeds=[[np.ones(2)], None]), PLAIN, None)
    rows = setup.sent_rows()
    assert (rows.tokens.tolist(), rows.overrides.tolist()) == ([-1, 5, 7], [[1, 1]])


@pytest.mark.parametrize("shown", [True, False])
async def test_states_come_apart_from_their_vectors(shown: bool) -> None:
    setup = Setup(stub_answer(values=[0.5, 1.0, 2.0, -0.5, -1.0, -2.0] if shown else [0.5, -0.5]))
    embedded = await setup.frontend.embed(replace(IDS, with_states=True), PLAIN, None)
    assert embedded.vectors == [[0.5], [-0.5]]
    states = embedded.states and [state.tolist() for state in embedded.states]
    assert states == ([[1.0, 2.0], [-1.0, -2.0]] if shown else None)
    rows = setup.sent_rows()
    assert rows.read.width == VECTOR_AND_STATE


async def test_more_classes_of_an_encoder_than_a_state_has_numbers_are_all_classes() -> None:
    traits = replace(CROSS_ENCODER, makes_numbers=False)
    setup = Setup(stub_answer(values=[0.5, 1.0, 2.0]), encoder=traits)
    call = EmbedCall([[1, 2]], True, None, with_states=True)
    embedded = await setup.frontend.embed(call, PLAIN, None)
    assert (embedded.vectors, embedded.states) == ([[0.5, 1.0, 2.0]], None)


async def test_calls_with_different_adapters_are_packed_apart() -> None:
    setup = Setup(count_tokens)
    calls = [replace(IDS, adapter=adapter) for adapter in ("", "a", "a", "b")]
    assert [each.vectors for each in await setup.embed(*calls)] == [[[3.0], [4.0]]] * len(calls)
    sent = {rows.adapter: rows.num_rows for _, rows in setup.link.sent}
    assert sent == {"": 2, "a": 4, "b": 2}
    assert len(setup.link.sent) == len(sent)


async def test_an_answer_becomes_one_vector_a_prompt() -> None:
    setup = Setup(stub_answer(values=[0.5, 1.0, -2.0, 0.25]))
    embedded = await setup.frontend.embed(IDS, PLAIN, None)
    assert embedded.vectors == [[0.5, 1.0], [-2.0, 0.25]]
    assert embedded.served.prompt_tokens.tolist() == [3, 4]
    rows = setup.sent_rows()
    assert (rows.prefix_len, rows.tokens.tolist()) == (2, [1, 2, 3, 4, 5])
    assert rows.read.width == WHOLE_VECTOR
    assert setup.metrics.as_dict()["items"] == 2
    assert setup.is_idle()


async def test_dimensions_and_options_reach_the_scheduler() -> None:
    setup = Setup(stub_answer(values=[1.0]))
    options = RequestOptions(priority=3)
    await setup.frontend.embed(EmbedCall([[5]], True, 1), options, None)
    rows = setup.sent_rows()
    assert rows.read.width == 1
    assert setup.link.options == [options]


async def test_texts_are_encoded_in_one_call_off_the_event_loop() -> None:
    setup = Setup(stub_answer(values=[1.0, 2.0]))
    await setup.frontend.embed(EmbedCall(["ab", "ac"], False, None), PLAIN, None)
    assert setup.link.encoded == [["ab", "ac"]]
    assert setup.link.encoding_threads != [threading.current_thread()]


async def test_many_token_ids_are_packed_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "_INLINE_TOKENS", 6)
    setup = Setup(stub_answer(values=[1.0, 2.0]))
    assert (await setup.frontend.embed(IDS, PLAIN, None)).vectors == [[1.0], [2.0]]


async def test_large_batches_are_packed_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def noting_pack(*args: Any, **options: Any) -> Any:
        threads.append(threading.current_thread())
        return pack_prompts(*args, **options)

    monkeypatch.setattr(embed_frontend, "pack_prompts", noting_pack)
    for most in (6, 7):  # the tokens of both
        monkeypatch.setattr(worker, "_INLINE_TOKENS", most)
        setup = Setup(stub_answer(values=[1.0, 2.0]))
        calls = [EmbedCall([[1, 2, 3]], True, None), EmbedCall([[4, 5, 6, 7]], True, None)]
        assert [each.vectors for each in await setup.embed(*calls)] == [[[1.0]], [[2.0]]]
        assert len(setup.link.sent) == 1
    assert [thread is threading.current_thread() for thread in threads] == [False, True]


async def test_large_answers_become_objects_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = Setup(lambda rows: stub_answer(values=[0.5] * 10 * rows.num_rows))
    calls = [EmbedCall([[1], [2]], False, None), EmbedCall([[1], [2], [3]], False, None)]
    monkeypatch.setattr(worker, "_INLINE_TOKENS", 20)
    small, large = (setup.frontend.embed(call, PLAIN, None) for call in calls)
    found = await answered_meanwhile(large, lambda: small, EmbedFrontend, "_listed", monkeypatch)
    assert found.vectors == [[0.5] * 10] * 3


async def test_vectors_of_too_many_tokens_are_refused() -> None:
    setup = Setup(stub_answer(values=[0.0] * 32_000), max_queued_mib=1)
    for prompts, refused in ((16, False), (17, True)):
        places = [list(range(1000))] * prompts
        call = EmbedCall([[1] * 1000] * prompts, False, None, places=places)
        (found,) = await setup.embed(call)
        assert isinstance(found, RequestError) == refused
    assert "token_indices_to_pool: 0 tokens and 34000 numbers" in str(found)


async def test_a_deadline_holds_while_texts_are_encoded() -> None:
    setup = Setup(stub_answer())
    (found,) = await setup.embed(TEXTS, options=RequestOptions(deadline_ms=1.0))
    assert isinstance(found, DeadlineExceededError)
    assert setup.link.sent == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (EmbedCall([[1], []], False, None), "field `input_ids`"),
        (EmbedCall([[VOCAB]], True, None), f"token id {VOCAB}"),
        (EmbedCall([""], True, None), "field `text`"),
    ],
)
async def test_wrong_prompts_are_refused_and_send_nothing(call: EmbedCall, message: str) -> None:
    setup = Setup(stub_answer())
    with pytest.raises(RequestError, match=message):
        await setup.frontend.embed(call, PLAIN, None)
    assert setup.link.sent == []
    assert setup.link.admitted == 0


async def test_a_prompt_over_the_limit_takes_the_stock_path() -> None:
    setup = Setup(stub_answer())
    with pytest.raises(StockPathTaken, match="row_over_budget"):
        await setup.frontend.embed(EmbedCall([[1] * 1001], True, None), PLAIN, None)
    assert setup.link.sent == []


async def test_a_call_with_a_prompt_over_the_limit_joins_no_batch() -> None:
    setup = Setup(count_tokens)
    taken, small = await setup.embed(
        EmbedCall([[1] * 1001, [2]], False, None), EmbedCall([[3]], True, None)
    )
    assert isinstance(taken, StockPathTaken)
    assert small.vectors == [[1.0]]


@pytest.mark.parametrize(
    ("call", "ids"),
    [
        (EmbedCall(["a" * 1001, "b"], False, None), [[97] * 1001, [98]]),
        (EmbedCall([[1] * 1001], True, None), None),
    ],
    ids=["texts", "ids"],
)
async def test_texts_that_were_encoded_go_down_the_stock_path_as_ids(
    call: EmbedCall, ids: list[list[int]] | None
) -> None:
    with pytest.raises(StockPathTaken) as taken:
        await Setup(stub_answer()).frontend.embed(call, PLAIN, None)
    assert taken.value.call == (None if ids is None else replace(call, prompts=ids))


async def test_concurrent_calls_share_a_packed_request() -> None:
    setup = Setup(count_tokens)
    calls = [EmbedCall([[7] * length], True, None) for length in (1, 3, 2)]
    results = await setup.embed(*calls, EmbedCall(["ab", "abcd"], False, None))
    assert [each.vectors for each in results] == [[[1.0]], [[3.0]], [[2.0]], [[2.0], [4.0]]]
    lens = [each.served.prompt_tokens.tolist() for each in results]
    assert lens == [[1], [3], [2], [2, 4]]
    assert [rows.num_rows for _, rows in setup.link.sent] == [3, 2]
    counters = setup.metrics.as_dict()
    assert (counters["requests"], counters["items"]) == ({"packed": 4}, 5)


async def test_calls_that_differ_in_what_they_ask_for_share_nothing() -> None:
    setup = Setup(lambda rows: stub_answer(values=[0.0] * rows.num_rows))
    narrow, whole = EmbedCall([[1]], True, 1), EmbedCall([[1]], True, None)
    urgent = RequestOptions(priority=1)
    await asyncio.gather(setup.embed(narrow, whole), setup.embed(whole, options=urgent))
    sent = [(rows.read.width, rows.num_rows) for _, rows in setup.link.sent]
    assert sent == [(1, 1), (WHOLE_VECTOR, 1), (WHOLE_VECTOR, 1)]


async def test_a_wrong_call_does_not_harm_those_it_came_with() -> None:
    setup = Setup(count_tokens)
    good, empty, far = await setup.embed(
        *(EmbedCall([t], True, None) for t in ("ab", "", "\u1234"))
    )
    assert good.vectors == [[2.0]]
    assert isinstance(empty, RequestError)
    assert far.vectors == [[3.0]]


async def test_a_text_that_cannot_be_encoded_does_not_harm_those_it_came_with() -> None:
    setup = Setup(count_tokens)
    calls = [EmbedCall([text], True, None) for text in ("ab", "\ud800", "abc")]
    good, broken, other = await setup.embed(*calls)
    assert (good.vectors, other.vectors) == ([[2.0]], [[3.0]])
    assert isinstance(broken, UnicodeEncodeError)


async def test_of_calls_whose_forward_fails_only_the_failing_one_is_lost() -> None:
    def answer(rows: PackedRows) -> PackedResult:
        return stub_answer("failed") if 66 in rows.tokens else count_tokens(rows)

    setup = Setup(answer)
    calls = [EmbedCall([[token]], True, None) for token in (5, 66, 7)]
    first, second, third = await setup.embed(*calls)
    assert first.vectors == third.vectors == [[1.0]]
    assert isinstance(second, PackedForwardError)


async def test_a_large_call_that_fails_is_not_tried_again() -> None:
    setup = Setup(stub_answer("failed"), gather_rows=1)
    (failed,) = await setup.embed(EmbedCall([[1], [2], [3]], False, None))
    assert isinstance(failed, PackedForwardError)
    assert len(setup.link.sent) == 1


async def test_a_busy_server_refuses_all_calls_of_a_batch() -> None:
    setup = Setup(stub_answer("rejected", retry_after_s=2.0))
    results = await setup.embed(*[EmbedCall([[1]], True, None)] * 2)
    assert [(type(each), each.retry_after_s) for each in results] == [(ServerBusyError, 2.0)] * 2
    assert len(setup.link.sent) == 1


async def test_prompts_of_one_beginning_share_it_whoever_sent_them() -> None:
    setup = Setup(count_tokens)
    instruction = list(range(1, 101))
    calls = [EmbedCall([[*instruction, 150 + n]], True, None) for n in range(3)]
    await setup.embed(*calls, EmbedCall([[200] * 30], True, None))
    shapes = {(rows.prefix_len, rows.num_rows) for _, rows in setup.link.sent}
    assert shapes == {(100, 3), (0, 1)}


async def test_a_row_that_the_scheduler_cannot_fit_is_not_sent_twice() -> None:
    setup = Setup(stub_answer("unfit", longest_row=499))
    for _ in range(2):
        with pytest.raises(StockPathTaken, match="row_over_budget"):
            await setup.frontend.embed(EmbedCall([[1] * 500], True, None), PLAIN, None)
    assert len(setup.link.sent) == 1


async def test_whole_rows_that_do_not_fit_keep_no_shorter_ones_away() -> None:
    """An encoder's rows are whole prompts, although a request sends a shared prefix once."""
    longest = 300

    def answer(rows: PackedRows) -> PackedResult:
        whole = rows.prefix_len + int(rows.suffix_lens.max())
        return stub_answer("unfit", longest_row=longest) if whole > longest else count_tokens(rows)

    setup, beginning = Setup(answer), [1] * 400
    call = EmbedCall([[*beginning, 2], [*beginning, 3]], True, None)
    with pytest.raises(StockPathTaken, match="row_over_budget"):
        await setup.frontend.embed(call, PLAIN, None)
    ((_, sent),) = setup.link.sent
    assert sent.prefix_len == len(beginning)
    (embedded,) = await setup.embed(EmbedCall([[1] * longest], True, None))
    assert embedded.vectors == [[float(longest)]]


async def test_texts_need_a_tokenizer() -> None:
    setup = Setup(count_tokens, has_tokenizer=False)
    (of_ids,) = await setup.embed(EmbedCall([[1]], True, None))
    assert of_ids.vectors == [[1.0]]
    with pytest.raises(StockPathTaken, match="no_tokenizer"):
        await setup.frontend.embed(EmbedCall(["a"], True, None), PLAIN, None)


async def test_a_declined_process_packs_nothing() -> None:
    setup = Setup(stub_answer())
    setup.exchange.declined_reason = StockReason.POOLING
    with pytest.raises(StockPathTaken, match="pooling"):
        await setup.frontend.embed(EmbedCall(["a"], True, None), PLAIN, None)
    assert setup.link.encoded == []

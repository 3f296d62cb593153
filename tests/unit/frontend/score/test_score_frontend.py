from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import (
    DeadlineExceededError,
    PackedForwardError,
    PrefillExtError,
    RequestAbortedError,
    RequestError,
    ServerBusyError,
    TooManyItemsError,
    WrongTypeError,
)
from sglang_prefill_ext.frontend.answers import Scored
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.frontend.pack import pack_token_ids
from sglang_prefill_ext.frontend.score import score_frontend
from sglang_prefill_ext.frontend.score.score_call import ScoreCall
from sglang_prefill_ext.frontend.score.score_frontend import ScoreFrontend
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.wire.arrays import FlatRows, int_array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.stock_reason import StockReason
from tests.unit.frontend.links import PathSetup, StubRequest, stub_answer
from tests.unit.waiting import until

VOCAB = 300
HIDDEN = 4
CALL = ScoreCall(query=[1, 2], items=[[3], [4, 5]], label_token_ids=[7, 8])


class Setup(PathSetup):
    """A front end whose scheduler answers nothing, until it has an answer."""

    def __init__(self, **settings: Any) -> None:
        longest = settings.get("max_forward_tokens", PrefillOnlyConfig().max_forward_tokens)
        super().__init__(max_row_tokens=longest, **settings)
        self.frontend = ScoreFrontend(self.path)

    async def score(self, *call: Any) -> Scored:
        return await self.frontend.score(*call)

    async def declined(self, call: ScoreCall) -> StockPathTaken:
        """Why a call takes the stock path, which it must."""
        with pytest.raises(StockPathTaken) as taken:
            await self.score(call)
        return taken.value


@pytest.fixture
def setup() -> Setup:
    return Setup()


def _label_rows(labels: Any) -> FlatRows:
    rows = labels if isinstance(labels[0], list) else [labels]
    return FlatRows(
        int_array([each for row in rows for each in row]), int_array(list(map(len, rows)))
    )


@pytest.mark.parametrize("request_object", [None, object(), StubRequest(patience=10**6)])
async def test_an_answer_becomes_scores(setup: Setup, request_object: Any) -> None:
    setup.answer(stub_answer(values=[0, -1, -2, -3], forwards=2))
    call = replace(CALL, return_token_logprobs=True, request=request_object)
    scored = await setup.score(call)
    assert scored.token_logprobs == [[0, -1], [-2, -3]]
    assert scored.scores == [
        pytest.approx([1, np.exp(-1)]),
        pytest.approx([np.exp(-2), np.exp(-3)]),
    ]
    assert scored.rows.num_prompt_tokens == 7
    assert setup.metrics.as_dict() == FrontendMetrics().as_dict() | {
        "requests": {"packed": 1},
        "items": 2,
        "forwards": 2,
        "tokens_computed": 5,
        "tokens_saved": 2,
    }
    assert len(setup.link.sent) == 1
    assert setup.link.aborted == []
    assert setup.is_idle()


@pytest.mark.parametrize("item_first", [False, True])
@pytest.mark.parametrize("labels", [[7, 8], [[7, 8], [9, 6]]], ids=["shared", "own"])
async def test_arrays_are_packed_as_lists_are(setup: Setup, item_first: bool, labels: Any) -> None:
    query, items = int_array([1, 2]), FlatRows(int_array([3, 4, 5]), int_array([1, 2]))
    setup.answer(stub_answer(values=[0, -1, -2, -3]))
    call = ScoreCall(CALL.query, CALL.items, labels, item_first=item_first)
    arrays = replace(call, query=query, items=items, label_token_ids=_label_rows(labels))
    assert arrays.listed() == call
    scored = [await setup.score(each) for each in (call, arrays)]
    assert scored[0].scores == scored[1].scores
    assert scored[0].rows.num_prompt_tokens == scored[1].rows.num_prompt_tokens
    sent = [rows for _, rows in setup.link.sent]
    assert sent[0].suffix_lens.tolist() == sent[1].suffix_lens.tolist()
    assert sent[0].tokens.tolist() == sent[1].tokens.tolist()
    assert sent[0].read.ids.tolist() == sent[1].read.ids.tolist()
    assert sent[0].read.lens.tolist() == sent[1].read.lens.tolist()


async def test_embeddings_come_beside_arrays(setup: Setup) -> None:
    setup.answer(stub_answer(values=[0, -1, -2, -3]))
    call = replace(
        CALL,
        items=FlatRows(int_array([3, 4, 5]), int_array([1, 2])),
        embed_override_token_id=5,
        item_embed_overrides=[None, np.ones((1, HIDDEN), np.float16)],
    )
    await setup.score(replace(call, query=int_array([1, 2])))
    rows = setup.sent_rows()
    assert (rows.tokens.tolist(), rows.prefix_len) == ([1, 2, 3, 4, -1], 2)
    assert rows.overrides.tolist() == [[1.0] * HIDDEN]


async def test_arrays_that_cannot_be_packed_are_left_to_stock(setup: Setup) -> None:
    nothing = FlatRows(int_array([]), int_array([]))
    with pytest.raises(StockPathTaken, match="unusual_input"):
        await setup.score(replace(CALL, label_token_ids=nothing))
    with pytest.raises(StockPathTaken, match="no_items"):
        await setup.score(replace(CALL, query=int_array([]), items=nothing))
    assert replace(CALL, items=nothing).num_items == 0
    many = FlatRows(int_array([1] * 2001), int_array([1] * 2001))
    with pytest.raises(TooManyItemsError, match="2001 items"):
        replace(CALL, items=many).check_counts(PrefillOnlyConfig(max_items=2000))


@pytest.mark.parametrize(
    ("query", "item", "words"), [(VOCAB, 1, "`query`.* 300"), (1, -1, "`items`.* -1")]
)
async def test_arrays_with_ids_out_of_the_vocabulary_are_refused(
    setup: Setup, query: int, item: int, words: str
) -> None:
    items = FlatRows(int_array([item]), int_array([1]))
    with pytest.raises(RequestError, match=words):
        await setup.score(replace(CALL, query=int_array([query]), items=items))


async def test_token_logprobs_are_left_out_unless_asked_for(setup: Setup) -> None:
    setup.answer(stub_answer(values=[0, -1, -2, -3]))
    assert (await setup.score(CALL)).token_logprobs is None


async def test_texts_with_embeddings_are_encoded_apart(setup: Setup) -> None:
    setup.answer(stub_answer(values=[0, -1, -2, -3]))
    setup.link.first_tokens = [1]
    call = ScoreCall(
        "q!",
        ["a!", "b"],
        [7, 8],
        embed_override_token_id=ord("!"),
        query_embed_overrides=[np.ones(HIDDEN, np.float16)],
        item_embed_overrides=[np.zeros((1, HIDDEN), np.float16), None],
    )
    await setup.score(call)
    rows = setup.sent_rows()
    assert rows.prefix_len == 3
    assert rows.tokens.tolist() == [1, ord("q"), -1, ord("a"), -2, ord("b")]
    assert rows.overrides.tolist() == [[1.0] * HIDDEN, [0.0] * HIDDEN]
    assert setup.link.encoding_threads[0] is not threading.main_thread()


@pytest.mark.parametrize(
    ("query", "items"), [([1, 2], [[9, 3, 9], [9]]), ("\1\2", ["\t\3\t", "\t"])]
)
async def test_setwise_calls_get_a_matrix_an_item(setup: Setup, query: Any, items: Any) -> None:
    setup.answer(stub_answer(values=[0, -1, -2, -3, -4, -5]))
    call = ScoreCall(query, items, [7, 8], score_extraction_token_id=9)
    scored = await setup.score(call)
    assert [len(matrix) for matrix in scored.scores] == [2, 1]
    assert scored.scores[1] == [pytest.approx([np.exp(-4), np.exp(-5)])]
    rows = setup.sent_rows()
    assert (rows.prefix_len, rows.read_lens.tolist()) == (2, [3, 1])


@pytest.mark.parametrize(("query", "items"), [([9], [[9]]), ("\t", ["\t"]), ([1], [[2]])])
async def test_setwise_calls_that_stock_refuses_are_not_sent(
    setup: Setup, query: Any, items: Any
) -> None:
    with pytest.raises(StockPathTaken, match="unusual_input"):
        await setup.score(ScoreCall(query, items, [7], score_extraction_token_id=9))
    assert setup.link.sent == []


@pytest.mark.parametrize("stacked", [False, True])
async def test_setwise_calls_bring_embeddings(setup: Setup, stacked: bool) -> None:
    """Some embeddings are at extraction tokens, because the placeholder is one."""
    setup.answer(stub_answer(values=[0, -1, -2]))
    own = [np.ones((1, HIDDEN), np.float16), np.zeros((2, HIDDEN), np.float16)]
    embeds = {"stacked_query_item_embed_overrides" if stacked else "item_embed_overrides": own}
    call = ScoreCall([1], [[9, 3], [9, 2, 9]], [7], score_extraction_token_id=9)
    call = replace(call, embed_override_token_id=9, return_token_logprobs=True, **embeds)
    scored = await setup.score(call)
    assert [len(matrix) for matrix in scored.scores] == [1, 2]
    assert scored.token_logprobs == []  # SGLang shows none
    rows = setup.sent_rows()
    assert rows.tokens.tolist() == [1, -1, 3, -2, 2, -2]
    assert (rows.prefix_len, rows.read_lens.tolist()) == (1, [2, 3])
    assert rows.read.lens.tolist() == [1, 0, 1, 0, 1]
    for fields in ({"query": [9]}, {"score_extraction_token_id": 3}):
        with pytest.raises(StockPathTaken, match="unusual_input"):
            await setup.score(replace(call, **fields))


async def test_embeddings_that_stock_refuses_are_not_sent(setup: Setup) -> None:
    ones = [np.ones(HIDDEN)] * 2
    call = replace(CALL, embed_override_token_id=1, query_embed_overrides=ones)
    for wrong in (call, replace(call, query=[1, -1], query_embed_overrides=ones[:1])):
        with pytest.raises(StockPathTaken, match="unusual_input"):
            await setup.score(wrong)
    with pytest.raises(RequestError, match="shape"):
        await setup.score(replace(call, query_embed_overrides=[np.ones(3)]))
    assert setup.link.sent == []
    assert setup.is_idle()


async def test_softmax_and_temperature_reach_the_scores(setup: Setup) -> None:
    setup.answer(stub_answer(values=[-1, -1, -1, -3]))
    call = replace(CALL, apply_softmax=True, temperature=2.0)
    share = 1 / (1 + np.exp(-1))
    expected = [[0.5, 0.5], [pytest.approx(share), pytest.approx(1 - share)]]
    assert (await setup.score(call)).scores == expected


@pytest.mark.parametrize(
    ("apply_softmax", "return_token_logprobs", "normalised"),
    [(False, False, True), (False, True, True), (True, True, True), (True, False, False)],
)
async def test_the_vocabulary_is_normalised_over_only_where_the_answer_shows_it(
    setup: Setup, apply_softmax: bool, return_token_logprobs: bool, normalised: bool
) -> None:
    setup.answer(stub_answer(values=[0, -1, -2, -3]))
    call = replace(CALL, apply_softmax=apply_softmax, return_token_logprobs=return_token_logprobs)
    await setup.score(call)
    assert setup.sent_rows().read.normalised is normalised


async def test_a_decline_takes_the_stock_path_and_is_remembered(setup: Setup) -> None:
    setup.answer(stub_answer("declined", "pooling"))
    for _ in range(3):
        assert (await setup.declined(CALL)).reason == "pooling"
    assert len(setup.link.sent) == 1
    assert setup.link.aborted == []
    assert setup.is_idle()


async def test_what_is_computed_to_nan_takes_the_stock_path_and_nothing_else_does(
    setup: Setup,
) -> None:
    setup.answer(stub_answer("not_finite", "beyond float16"))
    assert (await setup.declined(CALL)).reason == "not_finite"
    setup.answer(stub_answer(values=[0, -1, -2, -3]))
    await setup.score(CALL)
    assert setup.is_idle()


async def test_a_prefix_without_room_takes_the_stock_path_this_time(setup: Setup) -> None:
    setup.answer(stub_answer("no_room", "no room for the prefix"))
    assert (await setup.declined(CALL)).reason == "no_kv_room"
    setup.answer(stub_answer(values=[0, -1, -2, -3]))
    await setup.score(CALL)
    assert len(setup.link.sent) == 2


async def test_a_row_that_fits_no_forward_takes_the_stock_path_alone(setup: Setup) -> None:
    setup.answer(stub_answer("unfit", "too long", longest_row=1))
    for _ in range(2):
        assert (await setup.declined(CALL)).reason == "row_over_budget"
    assert len(setup.link.sent) == 1, "what did not fit once never will"
    setup.answer(stub_answer(values=[0, -1, -2, -3]))
    await setup.score(replace(CALL, items=[[3], [4]]))
    assert len(setup.link.sent) == 2
    assert setup.is_idle()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("aborted", RequestAbortedError),
        ("failed", PackedForwardError),
        ("rejected", ServerBusyError),
        ("expired", DeadlineExceededError),
    ],
)
async def test_an_unhappy_end_raises_its_error_and_leaves_the_path_open(
    setup: Setup, status: str, error: type[PrefillExtError]
) -> None:
    setup.answer(stub_answer(status, "what happened"))
    for _ in range(2):
        with pytest.raises(error, match="what happened"):
            await setup.score(CALL)
    assert len(setup.link.sent) == 2
    assert setup.link.aborted == []
    assert setup.metrics.as_dict()["requests"] == {}
    assert setup.is_idle()


async def test_a_rejected_client_learns_when_to_come_again(setup: Setup) -> None:
    setup.answer(stub_answer("rejected", "busy", retry_after_s=2.5))
    with pytest.raises(ServerBusyError) as busy:
        await setup.score(CALL)
    assert busy.value.retry_after_s == 2.5


async def test_a_deadline_passes_before_the_engine_takes_requests_again(setup: Setup) -> None:
    setup.link.is_open.clear()
    options = RequestOptions(deadline_ms=time.time() * 1e3 + 20)
    with pytest.raises(DeadlineExceededError, match="took no requests"):
        await setup.score(CALL, options)
    assert setup.link.sent == []
    assert setup.is_idle()


async def test_options_reach_the_scheduler(setup: Setup) -> None:
    setup.answer(stub_answer(values=[0, -1, -2, -3]))
    options = RequestOptions(priority=3, deadline_ms=time.time() * 1e3 + 60_000)
    await setup.score(CALL, options)
    await setup.score(CALL)
    assert setup.link.options == [options, RequestOptions()]


async def test_a_client_that_leaves_is_aborted_once(setup: Setup) -> None:
    call = replace(CALL, request=StubRequest(patience=3))
    with pytest.raises(RequestAbortedError, match="disconnected"):
        await setup.score(call)
    assert setup.link.aborted == [setup.link.sent[0][0]]
    assert setup.is_idle()


@pytest.mark.parametrize("request_object", [None, StubRequest(patience=10**6)])
async def test_a_cancelled_call_is_aborted_once(setup: Setup, request_object: Any) -> None:
    call = replace(CALL, request=request_object)
    task = asyncio.create_task(setup.score(call))
    await until(lambda: setup.link.sent)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert setup.link.aborted == [setup.link.sent[0][0]]
    assert setup.is_idle()


async def test_a_call_cancelled_while_it_is_packed_sends_nothing(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoding, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow_encode(texts: Sequence[str]) -> list[list[int]]:
        loop.call_soon_threadsafe(encoding.set)
        go_on.wait()
        return [[1] for _ in texts]

    monkeypatch.setattr(setup.link, "encode", slow_encode)
    task = asyncio.create_task(setup.score(ScoreCall("q", ["a"], [7])))
    await encoding.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()
    assert setup.link.sent == []
    assert setup.link.aborted == []
    assert setup.is_idle()


async def test_a_message_that_cannot_be_sent_leaves_nothing_behind(setup: Setup) -> None:
    def broken(rid: str, rows: PackedRows) -> None:
        raise OSError("socket closed")

    setup.link.on_send = broken
    with pytest.raises(OSError, match="socket closed"):
        await setup.score(CALL)
    assert setup.is_idle()


async def test_late_and_unknown_answers_are_ignored(setup: Setup) -> None:
    setup.exchange.deliver("never-sent", stub_answer())
    setup.answer(stub_answer(values=[0, -1, -2, -3]))
    await setup.score(CALL)
    setup.exchange.deliver(setup.link.sent[0][0], stub_answer("failed"))
    assert setup.is_idle()


async def test_the_first_of_two_answers_counts(setup: Setup) -> None:
    def answer_twice(rid: str, rows: PackedRows) -> None:
        setup.exchange.deliver(rid, stub_answer(values=[0, -1, -2, -3]))
        setup.exchange.deliver(rid, stub_answer("failed"))

    setup.link.on_send = answer_twice
    assert (await setup.score(CALL)).scores[0][0] == 1.0


async def test_concurrent_calls_get_their_own_answers(setup: Setup) -> None:
    calls = [ScoreCall([9], [[token], [1, 2]], [token]) for token in range(20)]
    tasks = [
        asyncio.create_task(setup.score(call), name=str(token)) for token, call in enumerate(calls)
    ]
    await until(lambda: len(setup.link.sent) == len(calls))
    assert setup.exchange.in_flight == len(calls)
    assert len({rid for rid, _ in setup.link.sent}) == len(calls)
    for rid, rows in random.Random(3).sample(setup.link.sent, len(calls)):
        label = float(rows.read.ids[0])
        setup.exchange.deliver(rid, stub_answer(values=[-label, -label - 1]))
    scored: list[Scored] = await asyncio.gather(*tasks)
    for token, result in enumerate(scored):
        assert result.scores == [[np.exp(-float(token))], [np.exp(-float(token) - 1)]]
    assert setup.is_idle()


@pytest.mark.parametrize(
    ("item_first", "texts"),
    [(False, ["Frage: ä", "Frage: 日本"]), (True, ["äFrage: ", "日本Frage: "])],
)
async def test_texts_are_encoded_in_one_call_off_the_event_loop(
    setup: Setup, item_first: bool, texts: list[str]
) -> None:
    setup.answer(stub_answer(values=[0, -1]))
    await setup.score(ScoreCall("Frage: ", ["ä", "日本"], [7], item_first=item_first))
    assert setup.link.encoded == [texts]
    assert setup.link.encoding_threads != [threading.current_thread()]
    rows = setup.sent_rows()
    assert rows.num_prompt_tokens == sum(len(text.encode()) for text in texts)


@pytest.mark.parametrize(
    "call",
    [
        ScoreCall("a", ["b", "\ud800"], [7]),
        ScoreCall("\ud800", ["b"], [7]),
        ScoreCall(items="\ud800", label_token_ids=[7]),
        ScoreCall("a", ["\ud800"], [7], score_extraction_token_id=5),
    ],
)
async def test_a_text_that_no_tokenizer_reads_is_named(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, call: ScoreCall
) -> None:
    def encode(*_texts: Any, **_how: Any) -> Any:
        raise TypeError("TextEncodeInput must be Union[TextInputSequence, ...]")

    monkeypatch.setattr(setup.link, "encode", encode)
    with pytest.raises(WrongTypeError, match=r"'.?\\ud800' has lone surrogates"):
        await setup.score(call)
    with pytest.raises(TypeError, match="TextEncodeInput"):
        await setup.score(ScoreCall("a", ["b"], [7]))


async def test_a_lone_text_item_needs_no_query(setup: Setup) -> None:
    setup.answer(stub_answer(values=[0]))
    await setup.score(ScoreCall(items="alone", label_token_ids=[7]))
    assert setup.link.encoded == [["alone"]]


@pytest.mark.parametrize(
    ("call", "on_the_loop"),
    [
        (CALL, True),
        (ScoreCall([1] * 30_000, [[1], [2]], [7]), False),
        (ScoreCall([1], [[1] * 15_000, [2] * 15_000], [7]), False),
        (ScoreCall([1] * 300, [[n % 9] for n in range(300)], [7], item_first=True), False),
    ],
    ids=["small", "long query", "long items", "query repeated in every row"],
)
async def test_many_token_ids_are_packed_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, call: ScoreCall, on_the_loop: bool
) -> None:
    threads: list[threading.Thread] = []

    def noting_pack(*args: Any) -> PackedRows:
        threads.append(threading.current_thread())
        return pack_token_ids(*args)

    monkeypatch.setattr(score_frontend, "pack_token_ids", noting_pack)
    setup = Setup(max_forward_tokens=50_000)
    setup.answer(stub_answer(values=[0] * call.num_items))
    await setup.score(call)
    assert [thread is threading.current_thread() for thread in threads] == [on_the_loop]


async def test_large_answers_become_objects_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[threading.Thread] = []
    scored = score_frontend.scored_of

    def noting(*args: Any) -> Scored:
        threads.append(threading.current_thread())
        return scored(*args)

    monkeypatch.setattr(score_frontend, "scored_of", noting)
    setup = Setup()
    for items in (100, 101):
        values = [0.0] * 200 * items
        setup.answer(stub_answer(values=values))
        found = await setup.score(ScoreCall([1], [[2]] * items, list(range(200))))
        assert found.scores == [[1.0] * 200] * items
    assert [thread is threading.current_thread() for thread in threads] == [True, False]


def test_too_many_items_are_refused() -> None:
    config = PrefillOnlyConfig(max_items=2)
    with pytest.raises(TooManyItemsError, match=r"3 items .* limit of 2.*--prefill-only-max-items"):
        ScoreCall([1], [[2], [3], [4]], [7], image_data=[]).check_counts(config)
    ScoreCall([1], [[2], [3]], [7]).check_counts(config)
    CALL.check_counts(config)


@pytest.mark.parametrize(
    ("call", "knobs", "reason"),
    [
        (ScoreCall([1], [[2]], [7], image_data=[]), {}, "multimodal"),
        (ScoreCall([1], [], [7]), {}, "no_items"),
        (ScoreCall([1], [[2]], None), {}, "unusual_input"),
        (ScoreCall([1], [[2]], [VOCAB - 1]), {"label_vocab_size": VOCAB - 1}, "unusual_input"),
        (ScoreCall("q", ["a"], [7]), {"has_tokenizer": False}, "no_tokenizer"),
        (ScoreCall("q", "a", [7]), {"has_tokenizer": False}, "no_tokenizer"),
        (ScoreCall([1], [[2], [3] * 5], [7]), {"max_forward_tokens": 4}, "row_over_budget"),
        (ScoreCall([1] * 60_000, [[2], [3] * 40_001], [7]), {}, "prompt_too_long"),
    ],
)
async def test_other_calls_take_the_stock_path_and_send_nothing(
    call: ScoreCall, knobs: dict[str, Any], reason: str
) -> None:
    setup = Setup(**knobs)
    assert (await setup.declined(call)).reason == reason
    assert setup.link.sent == []
    assert setup.is_idle()


async def test_calls_that_would_change_the_rotation_of_others_take_the_stock_path(
    setup: Setup,
) -> None:
    setup.link.longest_packed = 4
    for item, reason in (([3, 3, 3, 3], "long_prompt"), ([3] * 100_000, "prompt_too_long")):
        with pytest.raises(StockPathTaken, match=reason):
            await setup.score(ScoreCall([1], [[2], item], [7]))
    assert setup.link.sent == []


LONG = [5] * 1000
FLAT = FlatRows(int_array([5] * 400), int_array([1] * 400))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (ScoreCall(LONG, [[1]] * 400, [7], item_first=True), "400400 tokens and 400 numbers"),
        (ScoreCall(int_array(LONG), FLAT, [7], item_first=True), "400400 tokens"),
        (ScoreCall("q" * 1000, ["a"] * 400, [7], item_first=True), "400400 tokens"),
        (ScoreCall([1], [[2]] * 400, list(range(100))), "401 tokens and 40000 numbers"),
        (ScoreCall("q", ["a"] * 400, [list(range(100))] * 400), "800 tokens and 40000"),
        (
            ScoreCall([1], [[2]] * 400, list(range(100)), score_extraction_token_id=2),
            "0 tokens and 40000",
        ),
        (ScoreCall(LONG, [[2]] * 400, [7], score_extraction_token_id=2), "400400 tokens"),
        (
            ScoreCall("q", ["a"] * 400, list(range(100)), score_extraction_token_id=ord("a")),
            "0 tokens and 40000",
        ),
    ],
    ids="lists arrays texts labels own-labels anchors anchor-prompts anchor-texts".split(),
)
async def test_a_call_that_alone_takes_too_much_memory_is_refused(
    call: ScoreCall, words: str
) -> None:
    setup = Setup(max_queued_mib=1)
    with pytest.raises(RequestError, match=f"items: {words}.* limit of 1.*max-queued-mib"):
        await setup.score(call)
    assert setup.link.sent == []
    assert setup.is_idle()


@pytest.mark.parametrize("item_first", [False, True])
@pytest.mark.parametrize("items", [[[2]] * 3, FlatRows(int_array([2] * 3), int_array([1] * 3))])
async def test_prompts_that_are_too_long_are_not_repeated_to_be_refused(
    item_first: bool, items: Any
) -> None:
    query: Any = int_array([1] * 100_000) if isinstance(items, FlatRows) else [1] * 100_000
    call = ScoreCall(query, items, [7], item_first=item_first)
    too_long = "a prompt has 100001 tokens, the model takes 100000"
    for error, words, settings in (
        (StockPathTaken, "prompt_too_long", {}),
        (StockPathTaken, "prompt_too_long", {"truncates": True, "max_queued_tokens": 300_000}),
        (RequestError, too_long, {"max_queued_tokens": 300_000}),
    ):
        setup = Setup(**settings)
        with pytest.raises(error, match=words):
            await setup.score(call)
        assert setup.link.encoded == setup.link.sent == []


@pytest.mark.parametrize("item_first", [False, True])
async def test_texts_that_were_encoded_go_down_the_stock_path_as_ids(item_first: bool) -> None:
    call = ScoreCall("query ", ["a", "item b"], [7], item_first=item_first, apply_softmax=True)
    found: Any = (await Setup(max_forward_tokens=4).declined(call)).call
    ids = [item + found.query if item_first else found.query + item for item in found.items]
    prompts = [bytes(each).decode() for each in ids]
    assert prompts == (["aquery ", "item bquery "] if item_first else ["query a", "query item b"])
    assert found == replace(call, query=found.query, items=found.items)


@pytest.mark.parametrize(
    "call",
    [ScoreCall([1], [[2], [3] * 5], [7]), ScoreCall("q", ["a" * 9], [7], image_data=[])],
    ids=["ids", "not encoded"],
)
async def test_other_calls_go_down_the_stock_path_as_they_are(call: ScoreCall) -> None:
    assert (await Setup(max_forward_tokens=4).declined(call)).call is None


@pytest.mark.parametrize(
    ("call", "knobs"),
    [
        (ScoreCall([1], [[2], [3] * 4], [7]), {"max_forward_tokens": 4}),
        (ScoreCall([1] * 60_000, [[2], [3] * 40_000], [7]), {"max_forward_tokens": 40_000}),
        (ScoreCall([1], [[2], [3]], [7]), {"has_tokenizer": False}),
    ],
    ids=["row at the budget", "longest prompt", "token ids need no tokenizer"],
)
async def test_calls_at_the_limit_are_packed(call: ScoreCall, knobs: dict[str, Any]) -> None:
    setup = Setup(**knobs)
    setup.answer(stub_answer(values=[0, -1]))
    assert len((await setup.score(call)).scores) == 2


@pytest.mark.parametrize(
    "call",
    [ScoreCall([1], [[VOCAB]], [7]), ScoreCall([], [[], [1]], [7]), ScoreCall("", ["", "a"], [7])],
    ids=["id outside the vocabulary", "no token ids", "no text"],
)
async def test_wrong_prompts_are_refused_and_send_nothing(setup: Setup, call: ScoreCall) -> None:
    with pytest.raises(RequestError):
        await setup.score(call)
    assert setup.link.sent == []
    assert setup.is_idle()


async def test_declined_from_the_start(setup: Setup) -> None:
    setup.exchange.declined_reason = StockReason.NOT_GENERATION
    with pytest.raises(StockPathTaken, match="not_generation"):
        await setup.score(CALL)
    assert setup.link.sent == []

from __future__ import annotations

import asyncio
import threading

import pytest

from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend import embed_frontend
from sglang_prefill_ext.frontend.embed_call import EmbedCall
from sglang_prefill_ext.frontend.embed_frontend import EmbedFrontend
from sglang_prefill_ext.frontend.exchange import PackedExchange, StockPathTaken
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.wire.packed import WHOLE_VECTOR, PackedRows
from tests.unit.frontend.links import StubAnswer, StubLink
from tests.unit.frontend.test_embed_call import request

VOCAB = 300
IDS = EmbedCall([[1, 2, 3], [1, 2, 4, 5]], is_single=False, dimensions=None)
PLAIN = RequestOptions()


class Setup:
    """A front end whose scheduler answers at once."""

    def __init__(self, answer: StubAnswer, *, has_tokenizer: bool = True) -> None:
        self.link, self.metrics = StubLink(), FrontendMetrics()
        self.exchange = PackedExchange(self.link, max_row_tokens=1000)
        self.frontend = EmbedFrontend(
            self.link, self.exchange, self.metrics, vocab_size=VOCAB, has_tokenizer=has_tokenizer
        )

        def on_send(rid: str, rows: PackedRows) -> None:
            asyncio.get_running_loop().call_soon(self.exchange.deliver, rid, answer)

        self.link.on_send = on_send


async def test_an_answer_becomes_one_vector_a_prompt() -> None:
    setup = Setup(StubAnswer(values=[0.5, 1.0, -2.0, 0.25]))
    embedded = await setup.frontend.embed(IDS, PLAIN, None)
    assert embedded.vectors == [[0.5, 1.0], [-2.0, 0.25]]
    assert embedded.prompt_tokens == [3, 4]
    ((_, rows),) = setup.link.sent
    assert (rows.prefix_len, rows.tokens.tolist()) == (2, [1, 2, 3, 4, 5])
    assert rows.vector_width == WHOLE_VECTOR
    assert setup.metrics.as_dict()["items"] == 2
    assert setup.exchange.in_flight == setup.link.admitted == 0


async def test_dimensions_and_options_reach_the_scheduler() -> None:
    setup = Setup(StubAnswer(values=[1.0]))
    options = RequestOptions(priority=3)
    await setup.frontend.embed(EmbedCall([[5]], True, 1), options, None)
    ((_, rows),) = setup.link.sent
    assert rows.vector_width == 1
    assert setup.link.options == [options]


async def test_texts_are_encoded_in_one_call_off_the_event_loop() -> None:
    setup = Setup(StubAnswer(values=[1.0, 2.0]))
    await setup.frontend.embed(EmbedCall(["ab", "ac"], False, None), PLAIN, None)
    assert setup.link.encoded == [["ab", "ac"]]
    assert setup.link.encoding_threads != [threading.current_thread()]


async def test_many_token_ids_are_packed_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(embed_frontend, "_INLINE_TOKENS", 6)
    setup = Setup(StubAnswer(values=[1.0, 2.0]))
    assert (await setup.frontend.embed(IDS, PLAIN, None)).vectors == [[1.0], [2.0]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (EmbedCall([[1], []], False, None), "field `input_ids`"),
        (EmbedCall([[VOCAB]], True, None), f"token id {VOCAB}"),
        (EmbedCall([""], True, None), "field `text`"),
    ],
)
async def test_wrong_prompts_are_refused_and_send_nothing(call: EmbedCall, message: str) -> None:
    setup = Setup(StubAnswer())
    with pytest.raises(RequestError, match=message):
        await setup.frontend.embed(call, PLAIN, None)
    assert setup.link.sent == []
    assert setup.link.admitted == 0


async def test_a_prompt_over_the_limit_takes_the_stock_path() -> None:
    setup = Setup(StubAnswer())
    with pytest.raises(StockPathTaken, match="row_over_budget"):
        await setup.frontend.embed(EmbedCall([[1] * 1001], True, None), PLAIN, None)
    assert setup.link.sent == []


def test_a_request_is_read_or_sent_down_the_stock_path() -> None:
    frontend = Setup(StubAnswer()).frontend
    assert frontend.call_of(request(text="a")) == EmbedCall(["a"], True, None)
    with pytest.raises(StockPathTaken, match="lora"):
        frontend.call_of(request(text="a", lora_path="x"))


def test_texts_need_a_tokenizer() -> None:
    frontend = Setup(StubAnswer(), has_tokenizer=False).frontend
    assert not frontend.call_of(request(input_ids=[1])).is_text
    with pytest.raises(StockPathTaken, match="no_tokenizer"):
        frontend.call_of(request(text="a"))


def test_a_declined_process_packs_nothing() -> None:
    setup = Setup(StubAnswer())
    setup.exchange.decline("pooling")
    with pytest.raises(StockPathTaken, match="pooling"):
        setup.frontend.call_of(request(text="a"))

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.frontend.text_batch import TextBatches
from sglang_prefill_ext.frontend.worker import Worker
from sglang_prefill_ext.metrics import FrontendMetrics
from tests.unit.frontend.links import StubLink, path_of


class Panic(BaseException):
    """What a library in Rust raises when it panics."""


class Link(StubLink):
    """Panics at the text "panic"; the stub itself cannot encode lone surrogates."""

    def encode(self, texts: Sequence[str], *, continued: bool = False) -> list[list[int]]:
        found = super().encode(texts, continued=continued)
        if "panic" in texts:
            raise Panic("at the disco")
        return found


class Setup:
    def __init__(self, **knobs: int) -> None:
        self.link, self.metrics = Link(), FrontendMetrics()
        path = path_of(self.link, PrefillOnlyConfig(**knobs), metrics=self.metrics)
        self.batches = TextBatches(path, Worker("test"), self._finish)

    async def ask(self, *calls: list[str]) -> list[list[bytes] | BaseException]:
        asked = (self.batches.ask(texts) for texts in calls)
        return await asyncio.gather(*asked, return_exceptions=True)

    @staticmethod
    def _finish(ids: list[int]) -> bytes:
        if not ids:
            raise LookupError("empty")
        return bytes(ids)


async def test_texts_of_one_moment_are_encoded_together_and_off_the_event_loop() -> None:
    setup = Setup()
    assert await setup.ask(["a"], ["bc", "d"], ["é"]) == [[b"a"], [b"bc", b"d"], ["é".encode()]]
    assert setup.link.encoded == [["a", "bc", "d", "é"]]
    assert setup.link.encoding_threads != [threading.main_thread()]
    assert setup.metrics.totals["text_batches"] == 1


async def test_texts_beside_one_that_is_no_unicode_are_still_encoded_together() -> None:
    setup = Setup()
    good, bad, *_ = found = await setup.ask(["a"], ["\ud800"], ["b", "c"])
    assert isinstance(bad, UnicodeEncodeError)
    assert (good, found[2]) == ([b"a"], [b"b", b"c"])
    assert setup.link.encoded == [["a", "\ud800", "b", "c"], ["a", "b", "c"], ["\ud800"]]


async def test_a_batch_is_as_large_as_it_may_be() -> None:
    setup = Setup(gather_rows=2)
    await setup.ask(["a"], ["b"], ["c"], ["d", "e", "f"])
    assert sorted(map(len, setup.link.encoded)) == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("\ud800", UnicodeEncodeError, "surrogates"),
        ("panic", RuntimeError, "Panic.'at the disco'"),
        ("", LookupError, "empty"),
    ],
)
async def test_a_wrong_text_harms_nobody_else(
    text: str, error: type[Exception], message: str
) -> None:
    setup = Setup()
    good, wrong, other = await setup.ask(["a"], ["b", text], ["c"])
    assert (good, other) == ([b"a"], [b"c"])
    with pytest.raises(error, match=message):
        raise wrong if isinstance(wrong, BaseException) else AssertionError(wrong)


async def test_a_caller_that_leaves_harms_nobody_else() -> None:
    setup = Setup()
    leaving = asyncio.create_task(setup.batches.ask(["a"]))
    staying = asyncio.create_task(setup.batches.ask(["b"]))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == [b"b"]
    assert leaving.cancelled()


async def test_texts_and_pairs_are_not_mixed() -> None:
    setup = Setup()
    asked = (setup.batches.ask(texts) for texts in (["a"], [("b", "c")]))
    single, pair = await asyncio.gather(*asked, return_exceptions=True)
    assert single == [b"a"]
    assert isinstance(pair, AttributeError)  # the stub encodes no pairs

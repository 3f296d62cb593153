from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as changed

from sglang_prefill_ext.attach.carrier import EngineState, Offer, encode, fingerprint_of, state_from
from sglang_prefill_ext.errors import EngineUnavailableError
from sglang_prefill_ext.fleet.health import Health
from sglang_prefill_ext.fleet.loads import Loads
from sglang_prefill_ext.fleet.replica import Replica
from sglang_prefill_ext.fleet.selection import Member, Selection, chosen, difference
from sglang_prefill_ext.frontend.score.rerank import Reranking
from sglang_prefill_ext.wire.arrays import EmbeddingKind
from tests.unit.attach.engines import STATUS, facts
from tests.unit.fleet.stub_engines import an_offer


def offer(**changes: Any) -> Offer:
    settings = {"--quantization": "None", "weight version": "default"}
    known: dict[str, Any] = {"facts": facts(), "settings": settings, "reranking": None}
    return an_offer(**(known | changes))


def with_facts(**changes: Any) -> Offer:
    return offer(facts=facts(**changes))


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (offer(model_path="n"), "--model-path: 'n', the others have 'm'"),
        (offer(served_name="n"), "--served-model-name"),
        (offer(settings={"--quantization": "fp8", "weight version": "default"}), "fp8"),
        (offer(settings={"--quantization": "None", "weight version": "2"}), "weight version"),
        (offer(reranking=Reranking("t", 1, 2)), "chat template"),
        (with_facts(tokenizer=""), "tokenizer"),
        (with_facts(vocab_size=7), "size of the vocabulary"),
        (with_facts(sglang_version="9"), "SGLang's version"),
        (with_facts(embeddings=EmbeddingKind(8, "bfloat16")), "--dtype"),
        (with_facts(is_generation=False), "kind of model"),
        (with_facts(config=replace(facts().config, max_items=6)), "--prefill-only-max-items"),
    ],
    ids=str,
)
def test_what_differs_is_named(other: Offer, named: str) -> None:
    assert named in difference(Member(other), Member(offer()))


def test_what_does_not_change_answers_may_differ() -> None:
    config = replace(facts().config, attach="/elsewhere", gather_ms=0, launch_tokens=5)
    other = with_facts(config=config, longest_prompt=9)
    assert not difference(Member(other), Member(offer()))


def test_most_engines_make_the_fleet_and_of_as_many_those_that_made_it() -> None:
    one, other = Member(offer()), Member(offer(model_path="n"))
    assert chosen({}, None) is None
    assert chosen({}, one) is one
    assert chosen({"a": one, "b": other}, other) is other
    assert chosen({"a": one, "b": other, "c": other}, one) is other
    assert chosen({"a": Member(offer())}, one) is one


@pytest.mark.parametrize("order", ["ab", "ba", "abc", "cba", "bca"])
def test_whichever_engine_answers_a_new_router_first_the_oldest_of_as_many_make_the_fleet(
    order: str,
) -> None:
    one, other = offer(), offer(model_path="n")
    offers, since_s = (
        {"a": one, "b": other, "c": offer(model_path="k")},
        {"a": 50, "b": 10, "c": 90},
    )
    fleet = Fleet(*order)
    fleet.selection.settled = False
    for url in order:
        fleet.answer(url, offers[url], since_s=since_s[url])
    assert (fleet.selection.offer, list(fleet.loads)) == (other, ["b"])


def test_an_engine_that_comes_later_makes_no_fleet_because_it_is_older() -> None:
    fleet, one = Fleet("a", "b"), offer()
    fleet.answer("a", one, since_s=90)
    fleet.answer("b", offer(model_path="n"), since_s=10)
    assert (fleet.selection.offer, list(fleet.loads)) == (one, ["a"])


NOT_USED = "It is not used, as it differs."


class Fleet:
    """A `Selection` of engines, and what it has told."""

    def __init__(self, *urls: str) -> None:
        self.replicas = {url: Replica(url) for url in urls}
        self.loads = Loads()
        self.offers: list[Offer] = []
        self.selection = Selection(self.replicas, self.loads, self.offers.append)
        self.selection.settled = True

    def answer(
        self, url: str, own: Offer | None = None, *, busy_s: float = 1.0, **state: Any
    ) -> None:
        replica = self.replicas[url]
        replica.offer = own or replica.offer
        known = {"schedulers": [STATUS | {"busy_s": busy_s}], "late": False, "tokens": 0}
        self.selection.take_state(replica, EngineState("", None, **(known | state)))

    def silence(self, url: str) -> None:
        self.selection.take_silence(self.replicas[url], EngineUnavailableError("It is silent."))

    def available(self) -> list[str]:
        states = self.loads.snapshot(time.monotonic()).states
        return [url for url, state in states.items() if state.available]

    def whys(self) -> list[str]:
        return [each.why for each in self.replicas.values()]


def test_those_are_in_use_that_answer_like_most(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    fleet, one, other = Fleet("a", "b", "c"), offer(), offer(model_path="n")
    assert fleet.selection.offer is None
    fleet.answer("a", one, schedulers=[])
    assert (fleet.selection.offer, list(fleet.loads)) == (one, [])  # its speed is not known yet
    for url, own in (("a", one), ("b", other), ("c", offer())):
        fleet.answer(url, own)
    for _ in range(2):
        fleet.answer("b")
    assert (list(fleet.loads), fleet.offers) == (["a", "c"], [one])
    assert fleet.whys() == ["", f"{NOT_USED} --model-path: 'n', the others have 'm'", ""]
    fleet.answer("b", offer())
    fleet.answer("c", other)
    fleet.answer("a", other)  # now most are others
    assert (list(fleet.loads), fleet.offers) == (["a", "c"], [one, other])
    assert caplog.text.count(NOT_USED) == 3


def test_an_engine_differs_as_long_as_it_says_so() -> None:
    fleet = Fleet("a", "b")
    fleet.answer("a", offer())
    for _ in range(2):
        fleet.answer("b", offer(model_path="n"))
        assert [each.differs for each in fleet.replicas.values()] == [False, True]
        fleet.silence("b")
        assert not fleet.replicas["b"].differs


def test_silent_engines_do_not_count_and_are_back_with_an_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    fleet, other = Fleet("a", "b", "c", "d"), offer(model_path="n")
    for url, own in (("a", offer()), ("b", other), ("c", other)):
        fleet.answer(url, own)
    assert list(fleet.loads) == ["b", "c"]
    fleet.silence("d")
    for url in ("b", "c"):
        for _ in range(2):
            fleet.silence(url)
        assert fleet.selection.offer is other
        fleet.silence(url)
    now_s = time.monotonic()
    healths = {name: load.health(now_s) for name, load in fleet.loads.items()}
    assert healths == {"b": Health.DOWN, "c": Health.DOWN, "a": Health.UP}
    assert fleet.whys() == ["", *["It is silent."] * 3]
    fleet.answer("b")
    assert fleet.whys()[1].startswith(NOT_USED)
    for _ in range(3):
        fleet.silence("a")
    fleet.answer("b")  # the only one that answers
    fleet.answer("a")
    assert (list(fleet.loads), fleet.whys()[1]) == (["c", "b"], "")
    assert caplog.text.count("Engine c: It is silent.") == 1


def test_an_engine_that_has_restarted_is_a_new_one() -> None:
    fleet = Fleet("a")
    fleet.answer("a", offer())
    load = fleet.loads["a"]
    fleet.answer("a", busy_s=2.0)
    assert fleet.loads["a"] is load
    fleet.answer("a", offer(pair_tokens=0.25), busy_s=2.0)
    new, token_s = fleet.loads["a"], 2 * load.speed.now.token_s
    speed = new.speed.now
    assert (speed.token_s, speed.pair_s) == (token_s, token_s / 4)


def test_an_engine_tells_of_the_work_of_others_and_that_it_is_back() -> None:
    fleet = Fleet("a")
    fleet.answer("a", offer())
    load, now_s = fleet.loads["a"], time.monotonic()
    ticket = load.sent(1.0, now_s, tokens=10**8)
    for tokens in (3 * 10**8, 0):  # the second report is older than what was sent
        fleet.answer("a", tokens=tokens)
        others_s = max(0, tokens - 10**8) * load.speed.now.token_s
        assert load.outstanding_s(now_s) == pytest.approx(1.0 + others_s, rel=0.01)
    load.ended(ticket, now_s, ok=False)
    for late in (False, True):
        load.ended(load.sent(1.0, now_s), now_s, ok=False)
        for _ in range(2):
            load.ended(load.sent(1.0, now_s), now_s, ok=False)
        assert load.health(now_s) is Health.DOWN
        fleet.answer("a", late=late)
        assert (fleet.loads["a"], load.health(now_s)) == (load, Health.UP)


def test_what_waited_when_schedulers_last_answered_is_not_told_again() -> None:
    fleet = Fleet("a")
    fleet.answer("a", offer(), tokens=10**8)
    load, now_s = fleet.loads["a"], time.monotonic()
    outstanding_s = load.outstanding_s(now_s)
    fleet.answer("a", tokens=10**9, late=True)
    assert load.outstanding_s(now_s) == outstanding_s


def test_an_engine_that_computes_nothing_for_now_gets_work_only_if_no_other_can() -> None:
    fleet = Fleet("a", "b")
    for url in ("a", "b"):
        fleet.answer(url, offer())
    halts: list[tuple[dict[str, Any], str]] = [
        ({"paused": True}, "It is paused; /continue_generation ends that."),
        ({"schedulers": []}, "Its schedulers do not answer."),
    ]
    for halted, why in halts:
        fleet.answer("b", **halted)
        assert (fleet.available(), fleet.whys()) == (["a"], ["", why])
        fleet.answer("a", **halted)
        assert (fleet.available(), fleet.whys()) == (["a", "b"], [why, why])
        for url in ("a", "b"):
            fleet.answer(url)
        assert (fleet.available(), fleet.whys()) == (["a", "b"], ["", ""])


def test_an_engine_that_leaves_gets_no_more_work(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    fleet = Fleet("a", "b")
    for url in ("a", "b"):
        fleet.answer(url, offer())
    for leaving in (True, True, False):
        fleet.answer("b", leaving=leaving)
        assert fleet.loads["b"].draining == leaving
        assert fleet.whys() == ["", "It is shutting down." * leaving]
    assert caplog.text.count("It is shutting down.") == 1
    fleet.selection.drain("b")
    fleet.selection.drain("elsewhere")
    fleet.selection.choose()
    assert [load.draining for load in fleet.loads.values()] == [False, True]
    fleet.answer("a", other := offer(model_path="n"))
    assert fleet.selection.offer is other  # the one that leaves is no majority


def test_another_version_is_no_engine_of_this_fleet() -> None:
    state = EngineState(fingerprint_of(offer()), offer(), [], False, 0)
    assert state_from(encode(state)) == state
    with pytest.raises(EngineUnavailableError, match=r"its version is '0\.0\.9'"):
        state_from(encode(changed(state, version="0.0.9")))
    deep = b"\x91" * 10_000
    for torn in (b"", b"\x00", b"\x81" + encode("further") + deep, encode(state)[:-20]):
        with pytest.raises(EngineUnavailableError, match="cannot be"):
            state_from(torn)

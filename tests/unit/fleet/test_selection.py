from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as changed

from sglang_prefill_ext.attach.carrier import (
    EngineState,
    Offer,
    encode,
    fingerprint_of,
    state_from,
)
from sglang_prefill_ext.errors import EngineUnavailableError
from sglang_prefill_ext.fleet.selection import Member, chosen, difference
from sglang_prefill_ext.frontend.score.rerank import Reranking
from sglang_prefill_ext.wire.arrays import EmbeddingKind
from tests.unit.attach.engines import facts


def offer(**changes: Any) -> Offer:
    settings = {"--quantization": "None", "weight version": "default"}
    known = {"facts": facts(), "served_name": "m", "model_path": "m", "settings": settings}
    return Offer(**(known | changes))


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


def test_another_version_is_no_engine_of_this_fleet() -> None:
    state = EngineState(fingerprint_of(offer()), offer(), [], 0)
    assert state_from(encode(state)) == state
    with pytest.raises(EngineUnavailableError, match=r"its version is '0\.0\.9'"):
        state_from(encode(changed(state, version="0.0.9")))
    for torn in (b"", b"\x00", encode(state)[:-20]):
        with pytest.raises(EngineUnavailableError, match="cannot be"):
            state_from(torn)

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from sglang_prefill_ext.attach.session import SessionTexts
from sglang_prefill_ext.config import Switch
from sglang_prefill_ext.metrics import FrontendMetrics
from tests.unit.attach.engines import facts, word_tokenizer


def test_sessions_of_one_tokenizer_share_their_encoder() -> None:
    texts = SessionTexts(FrontendMetrics())
    encoder = texts.encoder_for(facts())
    assert encoder is not None
    assert encoder.encode(["a b"]) == [word_tokenizer().encode("a b").ids]
    assert texts.encoder_for(facts()) is encoder
    assert texts.encoder_for(facts(longest_prompt=9, caching=False)) is encoder


def test_another_tokenizer_or_configuration_has_an_encoder_of_its_own() -> None:
    texts, first = SessionTexts(FrontendMetrics()), facts()
    tokenizer = word_tokenizer()
    tokenizer.add_tokens(["another"])
    others = [
        changed(first, tokenizer=tokenizer.to_str()),
        changed(first, config=replace(first.config, prefix_splice=Switch.OFF)),
    ]
    made = [texts.encoder_for(each) for each in (first, others[0], first, others[1])]
    assert None not in made
    assert len(set(map(id, made))) == len(made)
    assert texts.encoder_for(changed(first, tokenizer="")) is None


def test_a_tokenizer_that_cannot_be_read_is_tried_again() -> None:
    texts = SessionTexts(FrontendMetrics())
    for _ in range(2):
        with pytest.raises(Exception, match="expected"):
            texts.encoder_for(facts(tokenizer="no JSON"))
    assert texts.encoder_for(facts()) is not None

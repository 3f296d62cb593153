"""`ScoreCall` must take exactly the arguments of SGLang's `score_request`."""

from __future__ import annotations

import inspect
from dataclasses import fields

from sglang.srt.managers.tokenizer_manager_score_mixin import TokenizerManagerScoreMixin

from sglang_prefill_ext.frontend.score.score_call import ScoreCall


def _parameters() -> list[inspect.Parameter]:
    signature = inspect.signature(TokenizerManagerScoreMixin.score_request)
    return list(signature.parameters.values())[1:]  # without `self`


def test_names_order_and_defaults_are_those_of_score_request() -> None:
    expected = [(parameter.name, parameter.default) for parameter in _parameters()]
    assert [(field.name, field.default) for field in fields(ScoreCall)] == expected


def test_score_request_takes_nothing_but_plain_arguments() -> None:
    kinds = {parameter.kind for parameter in _parameters()}
    assert kinds == {inspect.Parameter.POSITIONAL_OR_KEYWORD}


def test_any_mixture_of_positions_and_keywords_binds_as_score_request_would() -> None:
    names = [parameter.name for parameter in _parameters()]
    values = [object() for _ in names]
    for positional in range(len(names) + 1):
        kwargs = dict(zip(names[positional:], values[positional:], strict=True))
        call = ScoreCall(*values[:positional], **kwargs)
        assert [getattr(call, name) for name in names] == values

"""Hypothesis strategies for bodies of every route that both paths should answer alike.

All bodies are valid; `fuzz_spoiling` makes invalid ones of them.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.integration.support.client import VOCABULARY, Json
from tests.integration.support.override_bodies import PLACEHOLDER, embeds

_SPECIAL = 3
"""The first ids are those of special tokens."""

_TOKENS = st.integers(_SPECIAL, VOCABULARY - 1)
_PROMPTS = st.lists(_TOKENS, min_size=1, max_size=12)
_SHARED = st.lists(_TOKENS, min_size=0, max_size=20)
_LABELS = st.lists(_TOKENS, min_size=1, max_size=4, unique=True)
_TEXTS = st.sampled_from(
    [
        "plain words",
        "a",
        " two  spaces ",
        "naïve café 漢字",
        "😀 family",
        "e\u0301",
        "1 2 3",
        "<|x|>",
    ]
) | st.text(min_size=1, max_size=12).filter(str.strip)


def _optional(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    """A strategy for any subset of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


@st.composite
def _prompt_lists(draw: st.DrawFn) -> list[list[int]]:
    """Prompts that begin alike, as those of one request often do."""
    shared = draw(_SHARED)
    return [shared + own for own in draw(st.lists(_PROMPTS, min_size=1, max_size=4))]


@st.composite
def _score(draw: st.DrawFn) -> Json:
    many = {"min_size": 1, "max_size": 5}
    if draw(st.booleans()):
        query, items = draw(_SHARED), draw(st.lists(_PROMPTS, **many))
    else:
        query, items = draw(_TEXTS), draw(st.lists(_TEXTS, **many) | _TEXTS)
    count = 1 if isinstance(items, str) else len(items)
    labels = draw(_LABELS | st.lists(_LABELS, min_size=count, max_size=count))
    body = {"query": query, "items": items, "label_token_ids": labels}
    if draw(st.booleans()):
        body |= {"apply_softmax": True, "temperature": draw(st.sampled_from([0.5, 1, 2.0]))}
    return body | draw(_optional(item_first=st.booleans(), return_token_logprobs=st.booleans()))


@st.composite
def _array_score(draw: st.DrawFn) -> Json:
    """Scoring bodies with ids as base64 arrays, which both paths read."""
    items = draw(st.lists(_PROMPTS, min_size=1, max_size=4))
    values = [token for item in items for token in item]
    return {
        "query": {"values": _base64(np.array(draw(_SHARED), "<i4"))},
        "items": {
            "values": _base64(np.array(values, "<i4")),
            "counts": _base64(np.array(list(map(len, items)), "<i4")),
        },
        "label_token_ids": draw(_LABELS),
    }


def _base64(array: NDArray[Any]) -> str:
    return base64.b64encode(array.tobytes()).decode()


@st.composite
def _overridden_score(draw: st.DrawFn) -> Json:
    """Scoring bodies with embeddings in place of some tokens."""
    items = draw(st.lists(_PROMPTS, min_size=1, max_size=3))
    marked = [[*(token for token in item if token != PLACEHOLDER), PLACEHOLDER] for item in items]
    vectors = embeds(draw(st.integers(0, 9)), len(items), 1)
    form = {"dtype": "float32", "shape": list(vectors.shape), "data": _base64(vectors)}
    return {
        "query": [token for token in draw(_SHARED) if token != PLACEHOLDER],
        "items": marked,
        "label_token_ids": draw(_LABELS),
        "embed_override_token_id": PLACEHOLDER,
        "item_embed_overrides": form if draw(st.booleans()) else vectors.tolist(),
    }


_REGEXES = st.sampled_from(["(yes|no)", "[0-9]+", "a?", "[^a].*"])


@st.composite
def _generate(draw: st.DrawFn) -> Json:
    sampling = {"temperature": 0, "max_new_tokens": draw(st.sampled_from([1, 1, 0]))}
    sampling |= draw(
        _optional(
            top_k=st.sampled_from([-1, 1, 5]),
            top_p=st.sampled_from([1, 0.5]),
            ignore_eos=st.booleans(),
            skip_special_tokens=st.booleans(),
        )
    )
    if draw(st.booleans()):  # with any of these, the front end handles it differently
        sampling |= draw(
            _optional(
                stop_token_ids=st.lists(_TOKENS, max_size=3),
                logit_bias=st.dictionaries(
                    _TOKENS.map(str), st.sampled_from([1, -2.5]), max_size=2
                ),
                min_new_tokens=st.just(0),
                repetition_penalty=st.just(1.1),
                regex=_REGEXES,
                json_schema=st.just('{"type": "integer"}'),
            )
        )
    prompt = st.fixed_dictionaries({"input_ids": _PROMPTS | _prompt_lists()})
    prompt |= st.fixed_dictionaries({"text": _TEXTS | st.lists(_TEXTS, min_size=1, max_size=3)})
    wanted = _optional(
        return_logprob=st.booleans(),
        logprob_start_len=st.sampled_from([-1, 0, 1]),
        top_logprobs_num=st.integers(0, 3),
        token_ids_logprob=_LABELS,
        return_text_in_logprobs=st.booleans(),
        stream=st.just(False) | st.booleans(),
    )
    return draw(prompt) | {"sampling_params": sampling} | draw(wanted)


@st.composite
def _completion(draw: st.DrawFn) -> Json:
    prompt = _PROMPTS | _prompt_lists() | _TEXTS | st.lists(_TEXTS, min_size=1, max_size=3)
    body = {"model": "m", "prompt": draw(prompt), "max_tokens": 1, "temperature": 0}
    return body | draw(
        _optional(
            echo=st.booleans(),
            logprobs=st.integers(0, 3),
            stream=st.just(False) | st.booleans(),
            logit_bias=st.dictionaries(_TOKENS.map(str), st.just(2), max_size=2),
            return_token_ids=st.booleans(),
            suffix=st.just("."),
            regex=_REGEXES,
        )
    )


@st.composite
def _chat(draw: st.DrawFn) -> Json:
    turns = draw(st.lists(_TEXTS, min_size=1, max_size=3))
    roles = ["user", "assistant", "user"] if len(turns) != 2 else ["system", "user"]
    messages = [
        {"role": role, "content": content} for role, content in zip(roles, turns, strict=False)
    ]
    limit = draw(st.sampled_from(["max_tokens", "max_completion_tokens"]))
    body = {"model": "m", "messages": messages, limit: 1, "temperature": 0}
    return body | draw(
        _optional(
            logprobs=st.booleans(),
            top_logprobs=st.integers(0, 3),
            stream=st.just(False) | st.booleans(),
            continue_final_message=st.booleans(),
            chat_template_kwargs=st.just({"enable_thinking": False}),
            return_token_ids=st.booleans(),
            regex=_REGEXES,
            response_format=st.sampled_from([{"type": "json_object"}, {"type": "text"}]),
        )
    )


@st.composite
def _decisions(draw: st.DrawFn) -> Json:
    names = ["cat", "dog", "cow", "犬"]
    asked: list[Json] = []
    for number in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["choice", "score", "yes_no"]))
        question: Json = {"id": str(number), "type": kind, "question": draw(_TEXTS)}
        if kind == "choice":
            question["options"] = [{"name": name} for name in names[: draw(st.integers(2, 4))]]
        elif kind == "score":
            question["levels"] = names[: draw(st.integers(2, 4))]
        asked.append(question)
    body = {"input": draw(_TEXTS | st.just({"a": [1, "b"]})), "questions": asked}
    temperature, ids = st.sampled_from([0.5, 1, 2.0]), st.booleans()
    return body | draw(_optional(temperature=temperature, return_prompt_token_ids=ids))


RERANK = st.fixed_dictionaries(
    {"query": _TEXTS, "documents": st.lists(_TEXTS, min_size=1, max_size=4, unique=True)},
    optional={
        "instruct": _TEXTS | st.just(""),
        "top_n": st.integers(1, 5),
        "return_documents": st.booleans(),
        "model": st.just("m"),
    },
)
_VECTOR_PROMPTS = _PROMPTS | _TEXTS | st.lists(_TEXTS, min_size=1, max_size=3)
_EMBEDDINGS = st.fixed_dictionaries(
    {"model": st.just("m"), "input": _VECTOR_PROMPTS | _prompt_lists()},
    optional={"encoding_format": st.sampled_from(["float", "base64"]), "user": st.just("u")},
)
_TEXT_OR_IDS = st.fixed_dictionaries(
    {"text": _TEXTS | st.lists(_TEXTS, min_size=1, max_size=3)}
) | st.fixed_dictionaries({"input_ids": _PROMPTS | _prompt_lists()})
_CLASSIFY = st.fixed_dictionaries({"model": st.just("m"), "input": _VECTOR_PROMPTS})
_CLASS_SCORE = st.fixed_dictionaries(
    {"query": _TEXTS, "items": st.lists(_TEXTS, min_size=1, max_size=3)},
    optional={"apply_softmax": st.booleans(), "item_first": st.booleans()},
) | st.fixed_dictionaries({"query": _SHARED, "items": st.lists(_PROMPTS, min_size=1, max_size=3)})

Routes = Mapping[str, st.SearchStrategy[Json]]

GENERATION: Routes = MappingProxyType(
    {
        "/v1/score": _score() | _array_score() | _overridden_score(),
        "/generate": _generate(),
        "/v1/completions": _completion(),
        "/v1/chat/completions": _chat(),
        "/v1/decisions": _decisions(),
    }
)
EMBEDDINGS: Routes = MappingProxyType({"/v1/embeddings": _EMBEDDINGS, "/encode": _TEXT_OR_IDS})
CLASSES: Routes = MappingProxyType(
    {
        "/classify": _TEXT_OR_IDS,
        "/v1/classify": _CLASSIFY,
        "/v1/embeddings": _EMBEDDINGS,
        "/v1/rerank": RERANK,
        "/v1/score": _CLASS_SCORE,
    }
)

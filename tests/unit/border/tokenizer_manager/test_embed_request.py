from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.border.tokenizer_manager.embed_request import embed_call_of, text_pairs
from sglang_prefill_ext.frontend.embed.embed_call import EmbedCall
from sglang_prefill_ext.frontend.exchange import StockPathTaken


def request(**fields: Any) -> Any:
    """An `EmbeddingReqInput` with its defaults."""
    names = """text input_ids image_data video_data audio_data input_embeds embed_overrides
        embed_override_token_id positional_embed_overrides lora_path lora_id
        multi_item_delimiter_indices token_indices_to_pool decision_layout dimensions rid
        sampling_params priority""".split()
    switches = (
        "is_cross_encoder_request",
        "return_pooled_hidden_states",
        "return_prompt_token_ids",
    )
    defaults: dict[str, Any] = dict.fromkeys(names) | dict.fromkeys(switches, False)
    return SimpleNamespace(**(defaults | {"log_metrics": True} | fields))


def read(**fields: Any) -> EmbedCall:
    """The call of a request to a model that reads places."""
    return embed_call_of(request(**fields), reads_places=True)


def reason_of(*, reads_places: bool = True, **fields: Any) -> str:
    """Why a request goes down the stock path."""
    with pytest.raises(StockPathTaken) as taken:
        embed_call_of(request(**fields), reads_places=reads_places)
    return taken.value.reason


@pytest.mark.parametrize(
    ("fields", "call"),
    [
        ({"text": "a"}, EmbedCall(["a"], True, None)),
        ({"text": ["a"]}, EmbedCall(["a"], False, None)),
        ({"text": ["a", "b"], "dimensions": 8}, EmbedCall(["a", "b"], False, 8)),
        ({"input_ids": [1, 2]}, EmbedCall([[1, 2]], True, None)),
        ({"input_ids": [[1, 2], [3]]}, EmbedCall([[1, 2], [3]], False, None)),
        ({"text": "a", "rid": "mine"}, EmbedCall(["a"], True, None)),
        ({"text": "a", "priority": -(2**63)}, EmbedCall(["a"], True, None)),
        ({"text": ["a"], "rid": ["mine"]}, EmbedCall(["a"], False, None)),
        ({"text": ["a"], "lora_path": ["x"]}, EmbedCall(["a"], False, None)),
        (
            {"text": "a", "return_pooled_hidden_states": True},
            EmbedCall(["a"], True, None, with_states=True),
        ),
    ],
)
def test_prompts_are_listed(fields: dict[str, Any], call: EmbedCall) -> None:
    assert read(**fields) == call
    assert call.is_text == ("text" in fields)


def test_pairs_are_prompts() -> None:
    call = read(is_cross_encoder_request=True, text=[["query", "item"], ["query", "other"]])
    assert call == EmbedCall([("query", "item"), ("query", "other")], False, None)
    assert call.is_text


def test_embeddings_come_with_prompts_of_token_ids() -> None:
    at = SimpleNamespace(positions=[0, 1], embeds=None)
    for fields in (
        {"input_ids": [1, 2], "positional_embed_overrides": at},
        {"input_ids": [[1, 2]], "positional_embed_overrides": [at]},
    ):
        assert read(**fields).positional == [at]
    some = read(input_ids=[[1, 2], [3]], positional_embed_overrides=[at, None])
    assert some.positional == [at, None]
    for fields in (
        {"text": "a", "positional_embed_overrides": at},
        {"input_ids": [1], "positional_embed_overrides": at},
        {"input_ids": [[1, 2]], "positional_embed_overrides": [at, None]},
    ):
        assert reason_of(**fields) == "unusual_input"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"image_data": ["i"]}, "multimodal"),
        ({"input_embeds": [[0.5]]}, "embed_overrides"),
        ({"lora_path": ["x", None]}, "several_adapters"),
        ({"lora_path": [None]}, "unusual_input"),
        ({"lora_path": ["x"]}, "unusual_input"),
        ({"multi_item_delimiter_indices": [[1]]}, "multi_item_scoring"),
        ({"decision_layout": [[0]]}, "token_positions"),
        ({"token_indices_to_pool": [0]}, "unusual_input"),
        ({"lora_id": "a"}, "unusual_input"),
        ({"is_cross_encoder_request": True}, "unusual_input"),
        ({"is_cross_encoder_request": True, "text": ["query", "item"]}, "unusual_input"),
        ({"is_cross_encoder_request": True, "text": None, "input_ids": [1]}, "unusual_input"),
        ({"return_pooled_hidden_states": True, "dimensions": 4}, "pooled_hidden_states"),
        ({"return_prompt_token_ids": True}, "unusual_input"),
        ({"log_metrics": False}, "unusual_input"),
        ({"priority": 2**63}, "unusual_input"),
        ({"priority": -(2**63) - 1}, "unusual_input"),
        ({"sampling_params": {"": None}}, "unusual_input"),
        ({"sampling_params": []}, "unusual_input"),
        ({"rid": "HEALTH_CHECK_1"}, "health_check"),
        ({"rid": ["a"]}, "unusual_input"),
        ({"text": ["a"], "rid": "a"}, "unusual_input"),
        ({"text": ["a"], "rid": ["a", "b"]}, "unusual_input"),
        ({"text": None}, "unusual_input"),
        ({"text": []}, "unusual_input"),
        ({"text": [["query", "item"]]}, "unusual_input"),
        ({"text": None, "input_ids": []}, "unusual_input"),
        ({"text": None, "input_ids": [[1], 2]}, "unusual_input"),
        ({"text": None, "input_ids": "12"}, "unusual_input"),
        ({"input_ids": [1]}, "unusual_input"),
    ],
)
def test_others_take_the_stock_path_for_a_reason(fields: dict[str, Any], reason: str) -> None:
    assert reason_of(**({"text": "a"} | fields)) == reason


ROWS = [np.ones(2), np.ones(2)]


@pytest.mark.parametrize(
    ("fields", "embeds"),
    [
        ({"text": "a", "embed_overrides": ROWS}, [ROWS]),
        ({"text": ["a", "b"], "embed_overrides": [ROWS, None]}, [ROWS, None]),
        ({"input_ids": [[1], [2]], "embed_overrides": [None, ROWS]}, [None, ROWS]),
    ],
)
def test_embeddings_come_for_placeholders(fields: dict[str, Any], embeds: list[Any]) -> None:
    call = read(embed_override_token_id=7, **fields)
    assert (call.placeholder, call.embeds, call.positional) == (7, embeds, None)
    assert call.has_overrides


@pytest.mark.parametrize(
    "fields",
    [
        {"embed_override_token_id": None},
        {"embed_overrides": [ROWS]},  # a list for a list of prompts, which this is not
        {"embed_overrides": [[0.5, 0.5]]},
        {"embed_overrides": [0.5, 0.5]},
        {"embed_overrides": []},
        {"embed_overrides": np.ones((2, 2))},
        {"text": ["a", "b"], "embed_overrides": [ROWS]},
        {"text": [["a", "b"]], "is_cross_encoder_request": True, "embed_overrides": [ROWS]},
    ],
    ids=str,
)
def test_embeddings_that_stock_takes_otherwise_are_left_to_it(fields: dict[str, Any]) -> None:
    plain = {"text": "a", "embed_overrides": ROWS, "embed_override_token_id": 7}
    assert read(**plain).embeds == [ROWS]
    assert reason_of(**plain | fields) == "unusual_input"


def test_positions_that_come_too_stand_above_placeholders() -> None:
    at = SimpleNamespace(positions=[0], embeds=None)
    call = read(input_ids=[1], positional_embed_overrides=at, embed_overrides=ROWS)
    assert (call.positional, call.embeds) == ([at], None)


@pytest.mark.parametrize(
    ("prompts", "places", "listed"),
    [([4, 5, 6], [0, 2], [[0, 2]]), ([[4, 5], [6]], [[1], [0]], [[1], [0]])],
)
def test_vectors_are_wanted_of_any_token(prompts: Any, places: Any, listed: Any) -> None:
    asked = {"input_ids": prompts, "token_indices_to_pool": places}
    assert read(**asked).places == listed
    assert reason_of(**asked, reads_places=False) == "token_positions"


@pytest.mark.parametrize(
    "places",
    [[], [[]], [[1, 0]], [[0, 0]], [[-1]], [[2]], [["0"]], [[0], [1]], [None], "0"],
    ids=str,
)
def test_places_that_no_list_of_tokens_has_are_stocks(places: Any) -> None:
    asked = {"input_ids": [[4, 5]], "token_indices_to_pool": places}
    assert reason_of(**asked) == "unusual_input"
    assert reason_of(**asked | {"token_indices_to_pool": [[0]], "dimensions": 4})


pairs = st.lists(st.tuples(st.text(), st.text()))


@given(pairs)
def test_lists_and_tuples_are_pairs(wanted: list[tuple[str, str]]) -> None:
    assert text_pairs(wanted) == wanted
    assert text_pairs([list(pair) for pair in wanted]) == wanted


@pytest.mark.parametrize(
    "text",
    [
        None,
        "query",
        "ab",
        ["query", "document"],
        ["ab", "cd"],
        [],
        [["query"]],
        [["query", "document", "more"]],
        [["query", 5]],
        [["query", "document"], "document"],
        (("query", "document"),),
    ],
)
def test_anything_else_is_left_to_sglang(text: Any) -> None:
    assert text_pairs(text) == []

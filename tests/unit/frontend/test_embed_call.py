from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_prefill_ext.frontend.embed_call import (
    EmbedCall,
    embed_call_of,
    ineligible_embed_reason,
)


def request(**fields: Any) -> Any:
    """An `EmbeddingReqInput` with its defaults."""
    names = """text input_ids image_data video_data audio_data input_embeds embed_overrides
        positional_embed_overrides lora_path multi_item_delimiter_indices token_indices_to_pool
        decision_layout dimensions rid""".split()
    switches = (
        "is_cross_encoder_request",
        "return_pooled_hidden_states",
        "return_prompt_token_ids",
    )
    return SimpleNamespace(
        **(dict.fromkeys(names) | dict.fromkeys(switches, False) | fields)  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("fields", "call"),
    [
        ({"text": "a"}, EmbedCall(["a"], True, None)),
        ({"text": ["a"]}, EmbedCall(["a"], False, None)),
        ({"text": ["a", "b"], "dimensions": 8}, EmbedCall(["a", "b"], False, 8)),
        ({"input_ids": [1, 2]}, EmbedCall([[1, 2]], True, None)),
        ({"input_ids": [[1, 2], [3]]}, EmbedCall([[1, 2], [3]], False, None)),
        ({"text": "a", "rid": "mine"}, EmbedCall(["a"], True, None)),
        (
            {"text": "a", "return_pooled_hidden_states": True},
            EmbedCall(["a"], True, None, with_states=True),
        ),
    ],
)
def test_prompts_are_listed(fields: dict[str, Any], call: EmbedCall) -> None:
    assert ineligible_embed_reason(request(**fields)) is None
    assert embed_call_of(request(**fields)) == call
    assert call.is_text == ("text" in fields)


def test_pairs_are_prompts() -> None:
    asked = request(is_cross_encoder_request=True, text=[["query", "item"], ["query", "other"]])
    assert ineligible_embed_reason(asked) is None
    call = embed_call_of(asked)
    assert call == EmbedCall([("query", "item"), ("query", "other")], False, None)
    assert call.is_text


def test_embeddings_come_with_prompts_of_token_ids() -> None:
    at = SimpleNamespace(positions=[0, 1], embeds=None)
    for fields in (
        {"input_ids": [1, 2], "positional_embed_overrides": at},
        {"input_ids": [[1, 2]], "positional_embed_overrides": [at]},
    ):
        assert ineligible_embed_reason(request(**fields)) is None
        assert embed_call_of(request(**fields)).positional == [at]
    for fields in (
        {"text": "a", "positional_embed_overrides": at},
        {"input_ids": [1], "positional_embed_overrides": at},
        {"input_ids": [[1, 2]], "positional_embed_overrides": [at, None]},
    ):
        assert ineligible_embed_reason(request(**fields)) == "unusual_input"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"image_data": ["i"]}, "multimodal"),
        ({"input_embeds": [[0.5]]}, "embed_overrides"),
        ({"embed_overrides": [[0.5]]}, "embed_overrides"),
        ({"lora_path": ["x", None]}, "several_adapters"),
        ({"multi_item_delimiter_indices": [[1]]}, "multi_item_scoring"),
        ({"token_indices_to_pool": [[0]]}, "token_positions"),
        ({"is_cross_encoder_request": True}, "unusual_input"),
        ({"is_cross_encoder_request": True, "text": ["query", "item"]}, "unusual_input"),
        ({"is_cross_encoder_request": True, "text": None, "input_ids": [1]}, "unusual_input"),
        ({"return_pooled_hidden_states": True, "dimensions": 4}, "pooled_hidden_states"),
        ({"return_prompt_token_ids": True}, "unusual_input"),
        ({"rid": "HEALTH_CHECK_1"}, "health_check"),
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
    assert ineligible_embed_reason(request(**({"text": "a"} | fields))) == reason

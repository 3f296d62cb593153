"""What a model family is, and what several have in common."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

MULTIPLIERS = {
    "embedding_multiplier": 2.0,
    "attention_multiplier": 0.25,
    "residual_multiplier": 1.5,
    "logits_scaling": 1.25,
}
"""Of Granite. None is 1, or what it would be unless given, so that a forgotten one shows."""

WINDOW = 32
"""Tokens; short enough that ordinary test prompts are longer than the sliding window."""
SLIDING = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}


class Family(NamedTuple):
    """One architecture in the shape that all families have here.

    Attributes:
        summary: one line for people.
        model_type: the Hugging Face architecture name.
        more: configuration arguments beside the common shape.
    """

    summary: str
    model_type: str
    more: Mapping[str, Any] = MappingProxyType({})

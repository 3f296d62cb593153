"""What a model that reads images is, and parts that several have in common: pure data."""

from collections.abc import Mapping
from typing import Any, NamedTuple

ROTARY = {"rope_type": "default", "rope_theta": 10_000.0}
QWEN = {  # see `tokenizer.IMAGE_TOKENS`
    "vision_start_token_id": 3,
    "vision_end_token_id": 4,
    "image_token_id": 5,
    "video_token_id": 6,
}
QWEN3_ROTARY = ROTARY | {"mrope_section": [8, 4, 4], "mrope_interleaved": True}
QWEN_VISION = {"hidden_size": 32, "num_heads": 2, "intermediate_size": 64, "out_hidden_size": 128}
QWEN3_VISION = QWEN_VISION | {
    "depth": 2,
    "deepstack_visual_indexes": [0, 1],  # one for each layer of the text part
    "num_position_embeddings": 16,
}
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 28,
    "patch_size": 14,
}


class Multimodal(NamedTuple):
    """One architecture, with the text part in the shape that all families have here.

    Attributes:
        model_type: the Hugging Face architecture name.
        text: configuration arguments of the text part beside the common shape.
        rest: all other configuration arguments.
    """

    model_type: str
    text: Mapping[str, Any]
    rest: Mapping[str, Any]

"""What turns images into tokens, without which SGLang starts no server for a multimodal model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import (
    Gemma3ImageProcessor,
    Gemma3Processor,
    Gemma4AudioFeatureExtractor,
    Gemma4ImageProcessor,
    Gemma4Processor,
    Gemma4VideoProcessor,
    PreTrainedTokenizerFast,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

_OF_QWEN: Mapping[str, tuple[Any, Any]] = {
    "qwen2_vl": (Qwen2VLProcessor, Qwen2VLVideoProcessor),
    "qwen2_5_vl": (Qwen2_5_VLProcessor, Qwen2VLVideoProcessor),
    "qwen3_vl": (Qwen3VLProcessor, Qwen3VLVideoProcessor),
    "qwen3_vl_moe": (Qwen3VLProcessor, Qwen3VLVideoProcessor),
    "qwen3_5": (Qwen3VLProcessor, Qwen3VLVideoProcessor),
    "qwen3_5_moe": (Qwen3VLProcessor, Qwen3VLVideoProcessor),
}
"""Model type -> classes of its processor and of the part of it for videos."""


def save_processor(
    model_type: str, config: Any, tokenizer: PreTrainedTokenizerFast, directory: Path
) -> None:
    """Write the processor of Gemma's and Qwen's models; others cannot be served."""
    parts: Any = {"tokenizer": tokenizer, "chat_template": tokenizer.chat_template}
    vision: Any = getattr(config, "vision_config", None)
    processor: Any
    if model_type in _OF_QWEN:
        kind, of_videos = _OF_QWEN[model_type]
        images = Qwen2VLImageProcessor(patch_size=vision.patch_size)
        processor = kind(images, video_processor=of_videos(), **parts)
    elif model_type == "gemma3":
        side = {"height": vision.image_size, "width": vision.image_size}
        processor = Gemma3Processor(
            Gemma3ImageProcessor(size=side), image_seq_length=config.mm_tokens_per_image, **parts
        )
    elif model_type == "gemma4":
        parts["feature_extractor"] = Gemma4AudioFeatureExtractor()
        images = Gemma4ImageProcessor(patch_size=vision.patch_size)
        processor = Gemma4Processor(
            image_processor=images, video_processor=Gemma4VideoProcessor(), **parts
        )
    else:
        return
    processor.save_pretrained(directory)

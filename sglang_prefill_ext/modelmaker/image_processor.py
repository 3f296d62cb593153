"""What turns images into tokens, without which SGLang starts no server for a multimodal model."""

from pathlib import Path
from typing import Any

from transformers import (
    Gemma3ImageProcessor,
    Gemma3Processor,
    PreTrainedTokenizerFast,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)


def save_processor(
    model_type: str, config: Any, tokenizer: PreTrainedTokenizerFast, directory: Path
) -> None:
    """Write the processor of Gemma's and Qwen's models; others cannot be served."""
    vision, parts = config.vision_config, {"tokenizer": tokenizer}
    parts["chat_template"] = tokenizer.chat_template
    processor: Any
    match model_type:
        case "qwen2_vl":
            images = Qwen2VLImageProcessor(patch_size=vision.patch_size)
            processor = Qwen2VLProcessor(images, video_processor=Qwen2VLVideoProcessor(), **parts)
        case "qwen2_5_vl":
            images = Qwen2VLImageProcessor(patch_size=vision.patch_size)
            processor = Qwen2_5_VLProcessor(
                images, video_processor=Qwen2VLVideoProcessor(), **parts
            )
        case "qwen3_vl" | "qwen3_vl_moe":
            images = Qwen2VLImageProcessor(patch_size=vision.patch_size)
            processor = Qwen3VLProcessor(images, video_processor=Qwen3VLVideoProcessor(), **parts)
        case "gemma3":
            side = {"height": vision.image_size, "width": vision.image_size}
            processor = Gemma3Processor(
                Gemma3ImageProcessor(size=side),
                image_seq_length=config.mm_tokens_per_image,
                **parts,
            )
        case _:
            return
    processor.save_pretrained(directory)

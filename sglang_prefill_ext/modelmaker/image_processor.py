"""What turns images into tokens, without which SGLang starts no server for a multimodal model."""

from pathlib import Path

from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

_KINDS = {
    "qwen2_5_vl": (Qwen2_5_VLProcessor, Qwen2VLVideoProcessor, 14),
    "qwen3_vl": (Qwen3VLProcessor, Qwen3VLVideoProcessor, 16),
}
"""Model type -> processor, its processor of videos, pixels of a patch's side."""


def save_processor(model_type: str, tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    """Write the processor of Qwen's models; of others only the part that reads text is used."""
    if model_type not in _KINDS:
        return
    processor, videos, patch_size = _KINDS[model_type]
    processor(
        image_processor=Qwen2VLImageProcessor(patch_size=patch_size),
        tokenizer=tokenizer,
        video_processor=videos(),
        chat_template=tokenizer.chat_template,
    ).save_pretrained(directory)

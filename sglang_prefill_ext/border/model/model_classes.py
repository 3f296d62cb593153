"""The model classes that are packed, by what their code does, and what follows from a class.

Tests compare the numbers of each class with stock SGLang and with Hugging Face.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.utils.hf_transformers.common import get_rope_config

from sglang_prefill_ext.frontend.packed_path import EncoderTraits

RESIDUAL_ON_BATCH = frozenset(
    {
        "ArceeForCausalLM",
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "Exaone4ForCausalLM",
        "ExaoneMoEForCausalLM",
        "ExaoneMoeForCausalLM",
        "Gemma4ForConditionalGeneration",
        "Glm4ForCausalLM",
        "Glm4MoeForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "Glm4vForConditionalGeneration",
        "Glm4vMoeForConditionalGeneration",
        "GptOssForCausalLM",
        "KimiK25ForConditionalGeneration",
        "Llama4ForConditionalGeneration",
        "LlamaForCausalLM",
        "LlamaForSequenceClassification",
        "MellumForCausalLM",
        "MiMoV2FlashForCausalLM",
        "MiniMaxM2ForCausalLM",
        "Ministral3ForCausalLM",
        "Mistral3ForConditionalGeneration",
        "MistralForCausalLM",
        "MistralModel",
        "MixtralForCausalLM",
        "Phi3ForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen2ForRewardModel",
        "Qwen2ForSequenceClassification",
        "Qwen2MoeForCausalLM",
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3ForCausalLM",
        "Qwen3ForRewardModel",
        "Qwen3ForSequenceClassification",
        "Qwen3Model",
        "Qwen3MoeForCausalLM",
        "Qwen3OmniMoeForConditionalGeneration",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
    }
)
"""Model classes that keep the residual on the batch, so that the last layer can continue after its
attention with the read positions alone."""

RESIDUAL_IN_LAYERS = frozenset(
    {
        "AfmoeForCausalLM",
        "Cohere2ForCausalLM",
        "Cohere2MoeForCausalLM",
        "Cohere2VisionForConditionalGeneration",
        "CohereForCausalLM",
        "Ernie4_5_ForCausalLM",
        "Ernie4_5_MoeForCausalLM",
        "FalconH1ForCausalLM",
        "Gemma2ForCausalLM",
        "Gemma2ForSequenceClassification",
        "Gemma3ForCausalLM",
        "Gemma3ForConditionalGeneration",
        "GraniteForCausalLM",
        "GraniteMoeForCausalLM",
        "GraniteMoeHybridForCausalLM",
        "GraniteMoeSWAForCausalLM",
        "GraniteMoeSharedForCausalLM",
        "GraniteSWAForCausalLM",
        "HYV3ForCausalLM",
        "KimiLinearForCausalLM",
        "LagunaForCausalLM",
        "Lfm2ForCausalLM",
        "Lfm2MoeForCausalLM",
        "Lfm2VlForConditionalGeneration",
        "LongcatFlashForCausalLM",
        "NemotronHForCausalLM",
        "NemotronH_Nano_Omni_Reasoning_V3",
        "NemotronH_Nano_VL_V2",
        "NemotronH_Omni_Reasoning_V3",
        "Olmo2ForCausalLM",
        "OlmoForCausalLM",
        "OlmoeForCausalLM",
        "PhiMoEForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
        "StableLmForCausalLM",
        "Step3p5ForCausalLM",
        "Step3p7ForConditionalGeneration",
        "Starcoder2ForCausalLM",
        "TransformersEmbeddingModel",
        "TransformersForCausalLM",
        "TransformersMoEForCausalLM",
    }
)
"""Model classes whose layers add the residual or pass it on themselves, or gate the output of their
attention, so that the last layer has to run on all tokens."""

TOKENS_OR_EMBEDDINGS = frozenset(
    {
        "Gemma3nForCausalLM",
        "Gemma3nForConditionalGeneration",
        "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration",
        "Gemma4UnifiedForConditionalGeneration",
    }
)
"""Model classes that fail if they are given `input_embeds` beside token ids, as SGLang does."""

POSITIONS_FROM_1 = frozenset({"Gemma3ForConditionalGeneration", "Gemma4ForConditionalGeneration"})
"""Model classes in which the first token has position 1."""

VECTOR_ARCHITECTURES = frozenset(
    {
        "Gemma2ForSequenceClassification",
        "LlamaForCausalLM",
        "LlamaForSequenceClassification",
        "MistralForCausalLM",
        "MistralModel",
        "Qwen2ForCausalLM",
        "Qwen2ForRewardModel",
        "Qwen2ForSequenceClassification",
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3ForCausalLM",
        "Qwen3ForRewardModel",
        "Qwen3ForSequenceClassification",
        "Qwen3Model",
        "Qwen3VLForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
        "TransformersEmbeddingModel",
    }
)
"""Model classes that make a vector of the last token of every prompt: an embedding, classes, a
reward."""

EMBEDDING_GEMMA = "EmbeddingGemmaModel"
"""SGLang's class; in configurations it has the name of a decoder."""

ENCODER_ARCHITECTURES = frozenset(
    {
        "BertForSequenceClassification",
        "BertModel",
        EMBEDDING_GEMMA,
        "XLMRobertaForSequenceClassification",
        "XLMRobertaModel",
    }
)
"""Bidirectional model classes; they make a vector of the first token of every prompt, or of the
mean of its tokens."""

POOLED_AT_PLACES = frozenset(
    {
        "LlamaForClassification",
        "Qwen2ForSequenceClassification",
        "Qwen3ForRewardModel",
        "Qwen3ForSequenceClassification",
    }
)
"""Model classes whose heads can read any token of a prompt (`score_and_pool`). SGLang also counts
`LlamaForSequenceClassification` among them, but that always reads the last token."""


def reads_places(config: Any) -> bool:
    """Return whether the model of a `ModelConfig` can make a vector of any token of a prompt."""
    architectures = config.hf_config.architectures or []
    return bool(architectures) and POOLED_AT_PLACES.issuperset(architectures)


def longest_packed(config: Any) -> int:
    """Return the most tokens of a prompt that packed forwards take of the model of a `ModelConfig`.

    With LongRoPE, one longer prompt changes the rotation of all prompts of its batch, in SGLang.
    A longer prompt of EmbeddingGemma does not fit into the window that some layers have.
    """
    text, context = config.hf_text_config, int(config.context_len)
    if config.is_embedding_gemma:
        return int(min(context, text.sliding_window))
    rope = get_rope_config(text)[1] or {}
    if "longrope" not in (rope.get("rope_type"), rope.get("type")):
        return context
    original = getattr(text, "original_max_position_embeddings", None)
    return int(min(context, original or rope.get("original_max_position_embeddings", context)))


def encoder_traits(config: Any) -> EncoderTraits | None:
    """Return what a front end must know of the model of a `ModelConfig`; None if no encoder."""
    architectures, hf_config = config.hf_config.architectures or [], config.hf_config
    if config.is_embedding_gemma:
        architectures = [EMBEDDING_GEMMA]
    if not architectures or not ENCODER_ARCHITECTURES.issuperset(architectures):
        return None
    longest, has_head = hf_config.max_position_embeddings, "ForSequence" in architectures[0]
    if architectures[0].startswith("XLMRoberta"):
        longest -= hf_config.pad_token_id + 1  # positions begin after that of padding
    return EncoderTraits(
        token_types=getattr(hf_config, "type_vocab_size", 1),
        longest_prompt=longest,
        makes_numbers=has_head and hf_config.num_labels == 1,
    )

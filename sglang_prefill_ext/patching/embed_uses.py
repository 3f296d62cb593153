"""What embedding calls use of SGLang, in the front end and of its models; a part of `uses.USES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Use

_POOLER = "sglang.srt.layers.pooler"
_REQUEST = "sglang.srt.managers.io_struct.EmbeddingReqInput"
_TOKENIZER_MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"

_LANGUAGE_MODELS = ("llama.LlamaForCausalLM", "qwen2.Qwen2ForCausalLM", "qwen3.Qwen3ForCausalLM")
_LANGUAGE_MODEL_FORWARD = (
    "(self, input_ids, positions, forward_batch, input_embeds=None, get_embedding=False, "
    "pp_proxy_tensors=None)"
)
_CLASSIFIERS = (
    "llama_reward.LlamaForSequenceClassification",
    "qwen2_classification.Qwen2ForSequenceClassification",
    "qwen2_rm.Qwen2ForRewardModel",
    "qwen3_classification.Qwen3ForSequenceClassification",
)
_CLASSIFIER_FORWARD = (
    "(self, input_ids, positions, forward_batch, input_embeds=None, get_embedding=True)"
)
_FORWARDS = (
    *((model, _LANGUAGE_MODEL_FORWARD) for model in _LANGUAGE_MODELS),
    *((model, _CLASSIFIER_FORWARD) for model in _CLASSIFIERS),
)

EMBED_USES = (
    Use(
        id="U92",
        target=_REQUEST,
        group=Group.FRONTEND,
        used_by=(
            *(
                "border.tokenizer_manager.attached",
                "border.tokenizer_manager.adapter_lease",
                "border.tokenizer_manager.embed_hooks",
            ),
            *(
                "border.tokenizer_manager.frontend_hooks",
                "border.tokenizer_manager.override_hooks",
                "frontend.embed.embed_call",
            ),
        ),
        why="what a vector is wanted of, and whether it can be packed",
        members=(
            *("rid", "text", "input_ids", "input_embeds", "dimensions", "contains_mm_input"),
            *("image_data", "video_data", "audio_data", "is_cross_encoder_request"),
            *("embed_overrides", "embed_override_token_id", "positional_embed_overrides"),
            "token_indices_to_pool",
            *("multi_item_delimiter_indices", "decision_layout"),
            *("return_pooled_hidden_states", "return_prompt_token_ids", "lora_path", "lora_id"),
        ),
    ),
    Use(
        id="U93",
        target=f"{_REQUEST}.normalize_batch_and_arguments",
        group=Group.FRONTEND,
        used_by=("border.tokenizer_manager.embed_hooks",),
        why="refuses what SGLang refuses, and names the prompts",
        signature="(self)",
    ),
    Use(
        id="U94",
        target=f"{_TOKENIZER_MANAGER}._validate_for_matryoshka_dim",
        group=Group.FRONTEND,
        used_by=("border.tokenizer_manager.embed_hooks",),
        why="which widths the model's vectors may be cut to",
        signature="(self, obj)",
    ),
    Use(
        id="U95",
        target=f"{_TOKENIZER_MANAGER}.config_value",
        group=Group.FRONTEND,
        used_by=(
            "border.tokenizer_manager.embed_hooks",
            "border.tokenizer_manager.token_output",
            "border.tokenizer_manager.direct_generate",
        ),
        why="the version of the weights, for the answer",
        signature="(self, name)",
    ),
    Use(
        id="U96",
        target=f"{_POOLER}.Pooler",
        group=Group.SCHEDULER,
        used_by=("border.model.capability", "border.model.decoder_model"),
        why="where vectors are read, and whether they have length 1",
        members=("pooling_type", "normalize"),
    ),
    Use(
        id="U97",
        target=f"{_POOLER}.PoolingType",
        group=Group.SCHEDULER,
        used_by=("border.model.capability",),
        why="packed vectors are read at the last token",
        members=("LAST",),
    ),
    Use(
        id="U98",
        target=f"{_POOLER}.EmbeddingPoolerOutput",
        group=Group.SCHEDULER,
        used_by=(
            "border.model.decoder_model",
            "border.scheduler.ask_both_paths",
            "border.model.encoder_model",
        ),
        why="the vectors of a forward, and the states of which a head made them",
        members=("embeddings", "pooled_hidden_states"),
    ),
    *(
        Use(
            id=f"U{number}",
            target=f"sglang.srt.models.{model}.forward",
            group=Group.SCHEDULER,
            used_by=("border.model.decoder_model",),
            why="the layers, pooling and head of a packed architecture",
            signature=signature,
        )
        for number, (model, signature) in enumerate(_FORWARDS, start=99)
    ),
)

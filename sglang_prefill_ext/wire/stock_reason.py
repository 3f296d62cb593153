"""The reasons why SGLang serves a request itself, as metrics and docs name them."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

_CHOICE = (
    "a single token that needs more than its logits to be chosen, or that a stop string may end"
)
_MORE_OUTPUT = "a single token, with more output than the token and its log-probs"
_TIED = "a single token, tied to a session, a separate cache, one replica or a decode server"
_HANDED_ON = (
    "over gRPC only: the front end hands on vectors of a generation model (SGLang refuses them)"
    " and Matryoshka dimensions (the engine packs them)"
)
_MODEL = "the whole server: this model is not packed"
_ADAPTERS = (
    "the whole server: LoRA adapters may change the embedding table, the output head or the"
    " experts; narrow `--lora-target-modules`"
)


class StockReason(StrEnum):
    """A reason as it is counted and shown, in the order of the table in docs/monitoring.md.

    Attributes:
        meaning: what that table says of it.
    """

    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> Self:
        reason = str.__new__(cls, value)
        reason._value_ = value
        reason.meaning = meaning
        return reason

    OPTED_OUT = "opted_out", "the client sent `x-prefill-only: off`"
    NO_ITEMS = "no_items", "`items` is empty"
    UNUSUAL_INPUT = (
        "unusual_input",
        "a type, label or temperature that SGLang may refuse; its answer says so",
    )
    PROMPT_TOO_LONG = (
        "prompt_too_long",
        "a prompt is longer than the context; SGLang refuses or truncates it",
    )
    ROW_OVER_BUDGET = (
        "row_over_budget",
        "one prompt is longer than `--prefill-only-max-forward-tokens` or memory allow",
    )
    NOT_FINITE = "not_finite", "the packed forward gave NaN"
    NO_KV_ROOM = (
        "no_kv_room",
        "the request takes several forwards, and its prefix found no room in the KV pool",
    )
    EMBED_OVERRIDES = (
        "embed_overrides",
        "embeddings with a generation, for a whole prompt (`input_embeds`), or for an encoder",
    )
    TOKEN_POSITIONS = (
        "token_positions",
        "vectors of chosen tokens, but the head reads only the last token (SGLang's Llama"
        " classifier) or spans (joint schema)",
    )
    POOLED_HIDDEN_STATES = (
        "pooled_hidden_states",
        "hidden states together with `dimensions`, or of a generation model (SGLang refuses)",
    )
    MULTIMODAL = "multimodal", "images, audio or video"
    GRAMMAR = "grammar", _CHOICE
    LOGIT_PROCESSOR = "logit_processor", _CHOICE
    STOP_STRINGS = "stop_strings", _CHOICE
    BEAM_SEARCH = "beam_search", _CHOICE
    WATERMARK = "watermark", _CHOICE
    HIDDEN_STATES = "hidden_states", _MORE_OUTPUT
    ROUTED_EXPERTS = "routed_experts", _MORE_OUTPUT
    SAMPLING_MASK = "sampling_mask", _MORE_OUTPUT
    ENTROPY = "entropy", _MORE_OUTPUT
    FLAT_LOGPROBS = "flat_logprobs", _MORE_OUTPUT
    REASONING = "reasoning", _MORE_OUTPUT
    SESSION = "session", _TIED
    CACHE_NAMESPACE = "cache_namespace", _TIED
    ROUTED_DP_RANK = "routed_dp_rank", _TIED
    DISAGGREGATION = "disaggregation", _TIED
    POOLING = (
        "pooling",
        "the whole server: the model does not pool the last token (encoders: the first), or makes"
        " sparse vectors",
    )
    HEALTH_CHECK = "health_check", "SGLang's own `/health_generate` on an embedding server"
    NOT_GENERATION = (
        "not_generation",
        "only in `explain` and over gRPC: `/v1/score` of a model that makes vectors",
    )
    NO_VECTORS = "no_vectors", _HANDED_ON
    DIMENSIONS = "dimensions", _HANDED_ON
    NO_TOKENIZER = "no_tokenizer", "text, but the server has `--skip-tokenizer-init`"
    MULTI_ITEM_SCORING = (
        "multi_item_scoring",
        "SGLang's own multi-item scoring; remove `--enable-mis`",
    )
    MODEL_ARCHITECTURE = "model_architecture", _MODEL
    LOGIT_SOFT_CAP = "logit_soft_cap", _MODEL
    CROSS_ATTENTION = "cross_attention", _MODEL
    ATTENTION_VARIANT = "attention_variant", _MODEL
    UNEVEN_HEADS = "uneven_heads", _MODEL
    LONG_ROPE = "long_rope", _MODEL
    AUX_HIDDEN_STATES = "aux_hidden_states", _MODEL
    NO_ATTENTION_LAYERS = "no_attention_layers", _MODEL
    SEVERAL_ADAPTERS = (
        "several_adapters",
        "one call for vectors names different LoRA adapters; send a call per adapter",
    )
    LORA_OVERLAP_LOADING = (
        "lora_overlap_loading",
        "the whole server: remove `--enable-lora-overlap-loading`",
    )
    LORA_ENCODER = "lora_encoder", "the whole server: LoRA adapters with an encoder"
    LORA_VOCABULARY = "lora_vocabulary", _ADAPTERS
    LORA_EXPERTS = "lora_experts", _ADAPTERS
    KNOWN_ANSWERS_DIFFER = (
        "known_answers_differ",
        "the whole server: both paths differ on the known answers",
    )

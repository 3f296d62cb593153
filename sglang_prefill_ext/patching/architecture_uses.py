"""The models whose layers packed forwards run; a part of `uses.USES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Use

_PLAIN = "(self, input_ids, positions, forward_batch{})"
_EMBEDS = _PLAIN.format(", input_embeds=None")
_PIPELINE = _PLAIN.format(", input_embeds=None, pp_proxy_tensors=None")
_INPUTS_EMBEDS = _PLAIN.format(", inputs_embeds=None")

MODELS = (
    ("llama.LlamaModel", _PIPELINE),
    ("qwen2.Qwen2Model", _PIPELINE),
    ("qwen3.Qwen3Model", _PIPELINE),
    ("qwen3_moe.Qwen3MoeModel", _PIPELINE),
    ("ministral3.Ministral3Model", _PIPELINE),
    ("mixtral.MixtralModel", _PIPELINE),
    ("arcee.ArceeModel", _PIPELINE),
    ("glm4.Glm4Model", _PIPELINE),
    ("glm4_moe.Glm4MoeModel", _PIPELINE),
    ("granite.GraniteModel", _EMBEDS),
    ("granitemoe.GraniteMoeModel", _INPUTS_EMBEDS),
    ("olmo2.Olmo2Model", _EMBEDS),
    ("stablelm.StableLMEpochModel", _EMBEDS),
    ("starcoder2.Starcoder2Model", _INPUTS_EMBEDS),
    ("commandr.CohereModel", _PLAIN.format("")),
)

ARCHITECTURE_USES = (
    *(
        Use(
            id=f"U{number}",
            target=f"sglang.srt.models.{model}.forward",
            group=Group.SCHEDULER,
            used_by=("border.model.decoder_model",),
            why="the layers of a packed architecture",
            signature=signature,
        )
        for number, (model, signature) in enumerate(MODELS, start=200)
    ),
    Use(
        id="U230",
        target="sglang.srt.layers.rotary_embedding.rope_variant.Phi3LongRoPEScaledRotaryEmbedding",
        group=Group.SCHEDULER,
        used_by=("border.model.capability",),
        members=("original_max_position_embeddings",),
        why="positions that depend on the longest prompt of a forward, which is declined",
    ),
)

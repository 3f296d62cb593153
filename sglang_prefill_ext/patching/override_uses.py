"""What embeddings in place of tokens use of SGLang; a part of `uses.USES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Use

_MODELS = ("llama.LlamaModel", "qwen2.Qwen2Model", "qwen3.Qwen3Model", "qwen3_moe.Qwen3MoeModel")

OVERRIDE_USES = (
    Use(
        id="U240",
        target="sglang.srt.managers.embed_types.PositionalEmbeds",
        group=Group.FRONTEND,
        used_by=("compat.override_hooks", "frontend.embed_call"),
        why="embeddings and where they stand in a prompt",
        members=("embeds", "positions"),
    ),
    *(
        Use(
            id=f"U{number}",
            target=f"sglang.srt.models.{model}",
            group=Group.SCHEDULER,
            used_by=("compat.model",),
            why="embeddings of the tokens beside them",
            members=("embed_tokens",),
        )
        for number, model in enumerate(_MODELS, start=241)
    ),
)

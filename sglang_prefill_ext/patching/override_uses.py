"""What embeddings in place of tokens use of SGLang; a part of `uses.USES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.architecture_uses import MODELS
from sglang_prefill_ext.patching.spec import Group, Use

OVERRIDE_USES = (
    Use(
        id="U240",
        target="sglang.srt.managers.embed_types.PositionalEmbeds",
        group=Group.FRONTEND,
        used_by=("border.tokenizer_manager.override_hooks", "frontend.embed.embed_call"),
        why="embeddings and where they stand in a prompt",
        members=("embeds", "positions"),
    ),
    *(
        Use(
            id=f"U{number}",
            target=f"sglang.srt.models.{model}",
            group=Group.SCHEDULER,
            used_by=("border.model.decoder_model",),
            why="embeddings of tokens, some of which are replaced",
            members=("embed_tokens",),
        )
        for number, (model, _) in enumerate(MODELS, start=241)
    ),
)

PLACE_USES = (
    Use(
        id="U300",
        target="sglang.srt.layers.pooler.score_and_pool",
        group=Group.SCHEDULER,
        used_by=("border.model.decoder_model",),
        why="a head of classes at any token of a prompt",
        signature="(score_head, pooler, hidden_states, forward_batch, input_ids)",
    ),
)

"""What embeddings in place of tokens use of SGLang; a part of `uses.USES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.architecture_uses import MODELS
from sglang_prefill_ext.patching.spec import Group, Use

_IO = "sglang.srt.managers.io_struct"

OVERRIDE_USES = (
    Use(
        id="U240",
        target="sglang.srt.managers.embed_types.PositionalEmbeds",
        group=Group.FRONTEND,
        used_by=(
            "border.tokenizer_manager.override_hooks",
            "border.scheduler.stock_embeds",
            "frontend.embed.embed_call",
        ),
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

REFUSAL_USES = (
    Use(
        id="U365",
        target=f"{_IO}.TokenizedEmbeddingReqInput",
        group=Group.SCHEDULER,
        used_by=("border.scheduler.stock_embeds",),
        why="a call for a vector, whose model may take no embeddings",
        members=("rid", "positional_embed_overrides"),
    ),
    *(
        Use(
            id=f"U{number}",
            target=f"{_IO}.{name}",
            group=Group.SCHEDULER,
            used_by=("border.scheduler.stock_embeds",),
            why="likewise, of several requests",
            members=("batch",),
        )
        for number, name in (
            (366, "BatchTokenizedGenerateReqInput"),
            (367, "BatchTokenizedEmbeddingReqInput"),
        )
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

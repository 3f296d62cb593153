"""What packed forwards use of SGLang's encoders; a part of `uses.USES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Use

_MODELS = (
    ("bert.BertModel", "False"),
    ("bert.BertForSequenceClassification", "False"),
    ("roberta.XLMRobertaModel", "False"),
    ("roberta.XLMRobertaForSequenceClassification", "True"),
)

ENCODER_USES = (
    Use(
        id="U340",
        target="sglang.srt.layers.pooler.CrossEncodingPooler.forward",
        group=Group.SCHEDULER,
        used_by=("border.model.capability",),
        why="the head of a cross encoder",
        signature="(self, hidden_states, forward_batch)",
    ),
    *(
        Use(
            id=f"U{number}",
            target=f"sglang.srt.models.{model}.forward",
            group=Group.SCHEDULER,
            used_by=("border.model.encoder_model",),
            why="the layers, pooling and head of a packed encoder",
            signature="(self, input_ids, positions, forward_batch, input_embeds=None, "
            f"get_embedding={default})",
        )
        for number, (model, default) in enumerate(_MODELS, start=341)
    ),
)

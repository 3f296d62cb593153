"""What reading logits uses of SGLang."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Use

_LAYERS = "sglang.srt.layers"
_LOGITS = f"{_LAYERS}.logits_processor"

HEAD_USES = (
    Use(
        id="U43",
        target=f"{_LOGITS}.LogitsProcessor",
        group=Group.SCHEDULER,
        used_by=("border.model.output_head",),
        why="whether logits are a product, and of which part of the vocabulary",
        members=(
            *"logit_scale final_logit_softcapping use_fp32_lm_head".split(),
            *"use_fp32_lm_head_output rl_on_policy_target".split(),
            *"do_tensor_parallel_all_gather do_tensor_parallel_all_gather_dp_attn".split(),
            *"use_attn_tp_group _logits_gatherer".split(),
        ),
    ),
    Use(
        id="U45",
        target=f"{_LOGITS}.LogitsMetadata",
        group=Group.SCHEDULER,
        used_by=("border.model.output_head",),
        why="what it asks about a forward",
        members=("forward_mode",),
    ),
    Use(
        id="U46",
        target=f"{_LOGITS}.should_apply_lm_head_quant_method",
        group=Group.SCHEDULER,
        used_by=("border.model.output_head",),
        why="whether the output head is quantised",
        signature="(lm_head, quant_method)",
    ),
    Use(
        id="U47",
        target=f"{_LAYERS}.vocab_parallel_embedding.VocabParallelEmbedding",
        group=Group.SCHEDULER,
        used_by=("border.model.output_head",),
        why="which tokens of the vocabulary a rank has",
        members=(
            *"shard_indices org_vocab_size num_added_embeddings tp_size".split(),
            "num_embeddings_per_partition",
        ),
    ),
    Use(
        id="U48",
        target=f"{_LAYERS}.vocab_parallel_embedding.VocabParallelEmbeddingShardIndices",
        group=Group.SCHEDULER,
        used_by=("border.model.output_head",),
        why="the first and the last of them",
        members=("org_vocab_start_index", "org_vocab_end_index"),
    ),
    Use(
        id="U49",
        target="sglang.srt.distributed.communication_op.tensor_model_parallel_all_gather",
        group=Group.SCHEDULER,
        used_by=("border.model.output_head",),
        why="joins what ranks have read",
        signature="(input_, dim=-1)",
    ),
)

"""What encoding texts uses of SGLang; a part of `uses.USES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Use

_HOOKS = ("compat.text_hooks",)

TEXT_USES = (
    Use(
        id="U320",
        target="sglang.srt.managers.tokenizer_manager.TokenizerManager",
        group=Group.FRONTEND,
        used_by=_HOOKS,
        why="whether something encodes texts already, or makes token ids of more than texts",
        members=("mm_processor", "async_dynamic_batch_tokenizer", "model_config"),
    ),
    Use(
        id="U321",
        target="sglang.srt.configs.model_config.ModelConfig",
        group=Group.FRONTEND,
        used_by=_HOOKS,
        why="the one model whose texts SGLang ends with a token of its own",
        members=("is_embedding_gemma",),
    ),
    Use(
        id="U322",
        target="sglang.srt.managers.io_struct.GenerateReqInput",
        group=Group.FRONTEND,
        used_by=_HOOKS,
        why="the texts of a list, and the ids beside them",
        members=("text", "input_ids", "parallel_sample_num"),
    ),
    Use(
        id="U323",
        target="sglang.srt.runtime_context.get_serving",
        group=Group.FRONTEND,
        used_by=_HOOKS,
        why="whether SGLang encodes the texts of a list together",
        signature="()",
    ),
)

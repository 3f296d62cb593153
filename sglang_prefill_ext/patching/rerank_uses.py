"""What the hook on `/v1/rerank` uses of SGLang; a part of `uses.USES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Use

_HOOKS = ("border.tokenizer_manager.rerank_hooks",)
_PROTOCOL = "sglang.srt.entrypoints.openai.protocol"
_RERANK = "sglang.srt.entrypoints.openai.serving_rerank"
_SCORE_MIXIN = "sglang.srt.managers.tokenizer_manager_score_mixin.TokenizerManagerScoreMixin"

RERANK_USES = (
    Use(
        id="U106",
        target=f"{_RERANK}.OpenAIServingRerank",
        group=Group.FRONTEND,
        used_by=_HOOKS,
        why="whom to ask, and for which labels",
        members=("tokenizer_manager", "_yes_token_id", "_no_token_id"),
    ),
    Use(
        id="U107",
        target=f"{_PROTOCOL}.V1RerankReqInput",
        group=Group.FRONTEND,
        used_by=_HOOKS,
        why="what the prompts are made of",
        members=("query", "documents", "instruct"),
    ),
    Use(
        id="U108",
        target=f"{_RERANK}._get_jinja_env",
        group=Group.FRONTEND,
        used_by=_HOOKS,
        why="compiles the chat template in a sandbox",
        signature="()",
    ),
    Use(
        id="U109",
        target=f"{_SCORE_MIXIN}.score_prompts",
        group=Group.FRONTEND,
        used_by=_HOOKS,
        why="scores all prompts in one call, which is packed",
        signature="(self, prompts, label_token_ids, apply_softmax=False, request=None, "
        "temperature=1.0, return_token_logprobs=False, image_data=None)",
    ),
    Use(
        id="U110",
        target=f"{_RERANK}._qwen3_rerank_score",
        group=Group.FRONTEND,
        used_by=_HOOKS,
        why="makes a score of the two labels' probabilities",
        signature="(p_yes, p_no)",
    ),
    Use(
        id="U111",
        target=f"{_RERANK}.OpenAIServingRerank._build_rerank_response",
        group=Group.FRONTEND,
        used_by=_HOOKS,
        why="sorts, cuts and words the answer",
        signature="(self, ret, request)",
    ),
)

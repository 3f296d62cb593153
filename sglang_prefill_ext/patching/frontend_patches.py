"""What is changed in SGLang's front end and its data-parallel controller; a part of
`table.PATCHES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Kind, Patch

_BORDER = "sglang_prefill_ext.border"
_HOOKS = f"{_BORDER}.tokenizer_manager"
_MANAGERS = "sglang.srt.managers"
_SCORE_MIXIN = f"{_MANAGERS}.tokenizer_manager_score_mixin.TokenizerManagerScoreMixin"
_SERVING = "sglang.srt.entrypoints.openai.serving_base.OpenAIServingBase"
_TOKENIZER_MANAGER = f"{_MANAGERS}.tokenizer_manager.TokenizerManager"
_RERANK = "sglang.srt.entrypoints.openai.serving_rerank"

_MESSAGES = ("0003-plugin-message-types.patch",)
_WATCHED = ("0022-watch-data-parallel-replicas.patch",)
_TOKENS = ("0018-offer-tokenized-requests.patch",)

FRONTEND_PATCHES: tuple[Patch, ...] = (
    Patch(
        id="P20",
        target=f"{_TOKENIZER_MANAGER}.init_request_dispatcher",
        kind=Kind.AFTER,
        hook=f"{_HOOKS}.server_setup:attach_server",
        group=Group.FRONTEND,
        why="The tokenizer manager ends its process on a result type that it does not know.",
        relies_on="self._result_dispatcher TypeBasedDispatcher",
        diffs=_MESSAGES,
    ),
    Patch(
        id="P21",
        target=f"{_SCORE_MIXIN}.score_request",
        kind=Kind.AROUND,
        hook=f"{_HOOKS}.score_hooks:score_request",
        group=Group.FRONTEND,
        why="Every item of a scoring call would become a request of its own.",
        relies_on="ScoreResult",
        diffs=("0005-score-fast-path.patch",),
    ),
    Patch(
        id="P22",
        target=f"{_TOKENIZER_MANAGER}._validate_one_request",
        kind=Kind.BEFORE,
        hook=f"{_HOOKS}.prompt_checks:validate_prompt",
        group=Group.FRONTEND,
        why="An empty prompt, an id outside the vocabulary, more tokens or positions than there "
        "are, or unfit embeddings would end the scheduler.",
        relies_on="obj.input_embeds input_ids",
        diffs=(
            "0007-reject-empty-prompts.patch",
            "0008-reject-out-of-vocabulary-ids.patch",
            "0028-refuse-numbers-that-end-the-scheduler.patch",
            "0029-refuse-readout-positions-that-end-the-scheduler.patch",
            "0031-refuse-input-embeds-that-end-the-scheduler.patch",
        ),
    ),
    Patch(
        id="P23",
        target=f"{_SERVING}.handle_request",
        kind=Kind.AROUND,
        hook=f"{_BORDER}.http_server.fast_route:answer_errors",
        group=Group.FRONTEND,
        why="A rejected client would not learn when to come again: headers of errors are dropped.",
        relies_on="HTTPException self.create_error_response",
        diffs=("0013-keep-headers-of-http-errors.patch",),
    ),
    Patch(
        id="P24",
        target=f"{_TOKENIZER_MANAGER}.generate_request",
        kind=Kind.AROUND,
        hook=f"{_HOOKS}.embed_hooks:generate_request",
        group=Group.FRONTEND,
        why="Every prompt of an embedding call would become a request of its own.",
        relies_on="EmbeddingReqInput obj.normalize_batch_and_arguments",
        diffs=("0016-embedding-fast-path.patch",),
    ),
    Patch(
        id="P25",
        target=f"{_RERANK}.OpenAIServingRerank._handle_text_reranker_request",
        kind=Kind.AROUND,
        hook=f"{_HOOKS}.score_hooks:rerank_texts",
        group=Group.FRONTEND,
        why="The chat template would be compiled for every document, on the event loop.",
        relies_on="_render_jinja_chat_template self.tokenizer_manager.score_prompts "
        "_qwen3_rerank_score self._build_rerank_response",
        diffs=("0017-rerank-compile-template-once.patch",),
    ),
    Patch(
        id="P26",
        target=f"{_TOKENIZER_MANAGER}._send_one_request",
        kind=Kind.AROUND,
        hook=f"{_HOOKS}.token_hooks:send_one",
        group=Group.FRONTEND,
        why="A request that ends with its prompt would go through batches, sampling and decoding.",
        relies_on="self._dispatch_to_scheduler self._mark_state_dispatched",
        diffs=_TOKENS,
    ),
    Patch(
        id="P27",
        target=f"{_TOKENIZER_MANAGER}._send_batch_request",
        kind=Kind.AROUND,
        hook=f"{_HOOKS}.token_hooks:send_batch",
        group=Group.FRONTEND,
        why="Likewise, where a list of texts was tokenized in one call.",
        relies_on="self._dispatch_to_scheduler self._mark_state_dispatched",
        diffs=_TOKENS,
    ),
    Patch(
        id="P30",
        target=f"{_MANAGERS}.data_parallel_controller.DataParallelController.init_dispatcher",
        kind=Kind.AFTER,
        hook=f"{_BORDER}.dp_controller.dp_hooks:route_packed",
        group=Group.DP_CONTROLLER,
        why="Every replica would do the same packed work, and nobody would notice a killed one.",
        relies_on="self._request_dispatcher TypeBasedDispatcher self.send_control_message",
        diffs=(*_MESSAGES, *_WATCHED),
    ),
)

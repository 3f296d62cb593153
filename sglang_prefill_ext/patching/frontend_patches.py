"""Changes to SGLang's front end, and to how it encodes texts; part of `table.PATCHES`."""

from __future__ import annotations

from functools import partial

from sglang_prefill_ext.patching.spec import Group, Kind, Patch

_BORDER = "sglang_prefill_ext.border"
_HOOKS = f"{_BORDER}.tokenizer_manager"
_MANAGERS = "sglang.srt.managers"
_TOKENIZER_MANAGER = f"{_MANAGERS}.tokenizer_manager.TokenizerManager"
_RERANK = "sglang.srt.entrypoints.openai.serving_rerank"
_CHAT = "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat"

_around = partial(Patch, kind=Kind.AROUND, group=Group.FRONTEND)
_after = partial(Patch, kind=Kind.AFTER, group=Group.FRONTEND)
_before = partial(Patch, kind=Kind.BEFORE, group=Group.FRONTEND)

FRONTEND_PATCHES: tuple[Patch, ...] = (
    _after(
        id="P20",
        target=f"{_TOKENIZER_MANAGER}.init_request_dispatcher",
        hook=f"{_BORDER}.frontend_setup:attach_server",
        why="The tokenizer manager would exit at a packed result.",
        relies_on="self._result_dispatcher TypeBasedDispatcher",
        diffs="0003",
    ),
    _around(
        id="P21",
        target=f"{_MANAGERS}.tokenizer_manager_score_mixin.TokenizerManagerScoreMixin.score_request",
        hook=f"{_HOOKS}.score_hooks:score_request",
        why="Every item of a scoring call would be a request of its own.",
        relies_on="ScoreResult",
        diffs="0005",
    ),
    _before(
        id="P22",
        target=f"{_TOKENIZER_MANAGER}._validate_one_request",
        hook=f"{_HOOKS}.prompt_checks:validate_prompt",
        why="Prompts, ids, numbers and embeddings that cannot work would crash the scheduler, and "
        "unknown labels the server.",
        relies_on="obj.input_embeds input_ids",
        diffs="0007 0008 0028 0029 0031 0042 0043 0044 0046 0048 0051",
    ),
    _before(
        id="P79",
        target=f"{_MANAGERS}.io_struct.GenerateReqInput._normalize_lora_paths",
        hook=f"{_HOOKS}.prompt_checks:check_adapters",
        why="A list with more LoRA adapters than prompts would block all unloading.",
        relies_on="self.lora_path",
        diffs="0051",
    ),
    _around(
        id="P23",
        target="sglang.srt.entrypoints.openai.serving_base.OpenAIServingBase.handle_request",
        hook=f"{_BORDER}.http_server.fast_route:answer_errors",
        why="A rejected client would not learn when to retry: SGLang drops headers of errors.",
        relies_on="HTTPException self.create_error_response",
        diffs="0013",
    ),
    _around(
        id="P24",
        target=f"{_TOKENIZER_MANAGER}.generate_request",
        hook=f"{_HOOKS}.embed_hooks:generate_request",
        why="Every prompt of an embedding call would be a request of its own.",
        relies_on="EmbeddingReqInput obj.normalize_batch_and_arguments",
        diffs="0016",
    ),
    _around(
        id="P25",
        target=f"{_RERANK}.OpenAIServingRerank._handle_text_reranker_request",
        hook=f"{_BORDER}.http_server.rerank_hooks:rerank_texts",
        why="The event loop would compile the chat template for every document.",
        relies_on="_render_jinja_chat_template self.tokenizer_manager.score_prompts "
        "_qwen3_rerank_score self._build_rerank_response",
        diffs="0017",
    ),
    _around(
        id="P64",
        target=f"{_RERANK}.OpenAIServingRerank._handle_vl_reranker_request",
        hook=f"{_BORDER}.http_server.rerank_hooks:rerank_contents",
        why="Documents would be scored one after the other.",
        relies_on="self._build_vl_reranker_content GenerateReqInput "
        "self._extract_score_from_logprobs self._build_rerank_response",
        diffs="0036",
    ),
    _around(
        id="P26",
        target=f"{_TOKENIZER_MANAGER}._send_one_request",
        hook=f"{_HOOKS}.token_hooks:send_one",
        why="A request that ends with its prompt would go through batches and decoding.",
        relies_on="self._dispatch_to_scheduler self._mark_state_dispatched",
        diffs="0018",
    ),
    _around(
        id="P27",
        target=f"{_TOKENIZER_MANAGER}._send_batch_request",
        hook=f"{_HOOKS}.token_hooks:send_batch",
        why="As without P26, for texts tokenized in one call.",
        relies_on="self._dispatch_to_scheduler self._mark_state_dispatched",
        diffs="0018",
    ),
    _around(
        id="P43",
        target=f"{_TOKENIZER_MANAGER}.freeze_gc",
        hook=f"{_BORDER}.frontend_setup:freeze_gc",
        why="The tokenizer router and attached front ends would not freeze; garbage of the start "
        "would be frozen.",
        relies_on="FreezeGCReq gc_threshold self._dispatch_to_scheduler",
        diffs="0021",
    ),
    _around(
        id="P48",
        target="sglang.srt.entrypoints.http_server._freeze_gc_after_server_warmup",
        hook=f"{_BORDER}.gc_control:freeze_when_listening",
        why="With --skip-server-warmup no process would freeze.",
        relies_on="server_args.url requests.post",
        diffs="0045",
    ),
    _around(
        id="P45",
        target=f"{_MANAGERS}.multi_tokenizer_mixin.MultiTokenizerRouter"
        "._distribute_result_to_workers",
        hook=f"{_BORDER}.gc_control:spread_to_workers",
        why="Only one of several tokenizer workers would collect garbage, and maybe none would "
        "abort a call.",
        relies_on="BaseReq self.socket_mapping.send_output",
        diffs="0021",
    ),
    _around(
        id="P56",
        target=f"{_TOKENIZER_MANAGER}._tokenize_texts",
        hook=f"{_HOOKS}.text_hooks:tokenize_texts",
        why="The event loop would encode texts of concurrent requests one by one.",
        relies_on="self.async_dynamic_batch_tokenizer self.model_config.is_embedding_gemma",
        diffs="0025",
    ),
    _around(
        id="P57",
        target=f"{_TOKENIZER_MANAGER}._handle_batch_request",
        hook=f"{_HOOKS}.text_hooks:handle_batch",
        why="As without P56, for the texts of a list.",
        relies_on="obj.batch_size self._tokenize_one_request",
        diffs="0025",
    ),
    _around(
        id="P59",
        target=f"{_CHAT}._render_and_encode_chat_template",
        hook=f"{_HOOKS}.text_hooks:encode_chat",
        why="Encoding a chat would take several times as long as rendering it.",
        relies_on="self._prompt_text_round_trip_is_lossy "
        "self.template_manager.python_chat_template "
        "self.tokenizer_manager.tokenizer.apply_chat_template parallel_prompt_encode",
        diffs="0027",
    ),
    _around(
        id="P60",
        target=f"{_CHAT}._convert_to_internal_request",
        hook=f"{_HOOKS}.text_hooks:convert_chat",
        why="The thread that encodes a chat would not see that a client wants the stock path.",
        relies_on="self._process_messages",
        diffs="0027",
    ),
)

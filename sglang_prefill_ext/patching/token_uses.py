"""What calls for log-probs, single tokens and plain HTTP bodies use of SGLang; a part of
`uses.USES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Use

_HTTP = "sglang.srt.entrypoints"
_IO = "sglang.srt.managers.io_struct"
_SAMPLING_INFO = "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo"
_TIMES = "sglang.srt.observability.req_time_stats.APIServerReqTimeStats"
_TOKENIZER_MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"

TOKEN_USES = (
    Use(
        id="U130",
        target=f"{_IO}.TokenizedGenerateReqInput",
        group=Group.FRONTEND,
        used_by=(
            "border.tokenizer_manager.token_hooks",
            "border.tokenizer_manager.token_output",
            "frontend.token.token_call",
        ),
        why="what is wanted of a prompt, and whether it can be packed",
        members=(
            *"rid input_ids sampling_params return_logprob logprob_start_len".split(),
            *"top_logprobs_num token_ids_logprob time_stats input_embeds".split(),
            *"positional_embed_overrides mm_inputs session_id session_params lora_id".split(),
            *"custom_logit_processor bootstrap_host bootstrap_room token_type_ids".split(),
            *"multi_item_delimiter_indices token_indices_to_pool routed_dp_rank".split(),
            *"extra_key cache_salt return_hidden_states return_routed_experts".split(),
            *"return_indexer_topk return_sampling_mask return_entropy".split(),
            *"return_flat_raw_top_logprobs require_reasoning".split(),
        ),
    ),
    Use(
        id="U131",
        target=f"{_IO}.BatchStrOutput",
        group=Group.FRONTEND,
        used_by=("border.tokenizer_manager.token_output", "frontend.token.token_answer"),
        why="an answer as the detokenizer sends it",
        members=(
            *"rids finished_reasons output_strs output_ids prompt_tokens".split(),
            *"completion_tokens reasoning_tokens cached_tokens".split(),
            *"input_token_logprobs_val input_token_logprobs_idx".split(),
            *"output_token_logprobs_val output_token_logprobs_idx".split(),
            *"input_top_logprobs_val input_top_logprobs_idx".split(),
            *"output_top_logprobs_val output_top_logprobs_idx".split(),
            *"input_token_ids_logprobs_val input_token_ids_logprobs_idx".split(),
            *"output_token_ids_logprobs_val output_token_ids_logprobs_idx".split(),
            *"output_token_entropy_val output_token_sampling_mask output_hidden_states".split(),
            *"routed_experts indexer_topk placeholder_tokens_idx placeholder_tokens_val".split(),
            *"retraction_counts weight_versions cached_tokens_details dp_ranks".split(),
            "spec_verify_ct",
        ),
    ),
    Use(
        id="U132",
        target="sglang.srt.utils.weight_versions.WeightVersionSpan",
        group=Group.FRONTEND,
        used_by=("border.tokenizer_manager.token_output",),
        why="with which weights a token was made",
        members=("version", "start", "end"),
    ),
    Use(
        id="U133",
        target=f"{_TOKENIZER_MANAGER}._handle_batch_output",
        group=Group.FRONTEND,
        used_by=("border.tokenizer_manager.token_hooks",),
        why="forms and delivers the answer",
        signature="(self, recv_obj)",
    ),
    Use(
        id="U134",
        target=f"{_TOKENIZER_MANAGER}._mark_state_dispatched",
        group=Group.FRONTEND,
        used_by=("border.tokenizer_manager.token_hooks",),
        why="a request that leaves early is aborted, not forgotten",
        signature="(self, rid)",
    ),
    Use(
        id="U135",
        target=f"{_TIMES}.set_api_server_dispatch_time",
        group=Group.FRONTEND,
        used_by=("border.tokenizer_manager.token_hooks",),
        why="when a request was sent, for SGLang's metrics",
        signature="(self, ts=None)",
    ),
    Use(
        id="U136",
        target=f"{_TIMES}.set_api_server_dispatch_finish_time",
        group=Group.FRONTEND,
        used_by=("border.tokenizer_manager.token_hooks",),
        why="likewise",
        signature="(self, ts=None)",
    ),
    Use(
        id="U137",
        target=f"{_HTTP}.openai.protocol.UsageInfo",
        group=Group.FRONTEND,
        used_by=("border.http_server.embeddings_route", "border.http_server.score_route"),
        why="the part of an answer that counts tokens",
        members=("prompt_tokens", "total_tokens"),
    ),
    Use(
        id="U138",
        target="sglang.srt.utils.request_logger.RequestLogger",
        group=Group.FRONTEND,
        used_by=("border.http_server.fast_route", "border.tokenizer_manager.call_records"),
        why="whether SGLang has to see every body; whether calls are logged",
        members=("log_requests", "log_requests_level"),
    ),
    Use(
        id="U139",
        target="sglang.srt.layers.sampler.Sampler.forward",
        group=Group.SCHEDULER,
        used_by=("border.model.sampler",),
        why="draws tokens",
        signature="(self, logits_output, sampling_info, return_logprob, top_logprobs_nums, "
        "token_ids_logprobs, positions, *, logprob_logits=None)",
    ),
    Use(
        id="U140",
        target=_SAMPLING_INFO,
        group=Group.SCHEDULER,
        used_by=("border.model.sampler",),
        why="how",
        members=(
            *"temperatures top_ps top_ks min_ps is_all_greedy is_any_greedy".split(),
            *"need_top_p_sampling need_top_k_sampling need_min_p_sampling max_top_k".split(),
            *"vocab_size sampling_seed device logit_bias".split(),
        ),
    ),
    Use(
        id="U141",
        target=f"{_SAMPLING_INFO}.apply_logits_bias",
        group=Group.SCHEDULER,
        used_by=("border.model.sampler",),
        why="adds the biases, as the model runner does before it samples",
        signature="(self, logits)",
    ),
    Use(
        id="U142",
        target="sglang.srt.runtime_context.get_exec",
        group=Group.SCHEDULER,
        used_by=("border.model.sampler",),
        why="whether draws are to be the same again",
        signature="()",
    ),
    Use(
        id="U143",
        target=f"{_HTTP}.http_server.serve_generate_request",
        group=Group.FRONTEND,
        used_by=("border.http_server.generate_route",),
        why="serves a request of `/generate` that was read already",
        signature="(obj, request)",
    ),
    Use(
        id="U144",
        target="sglang.srt.observability.request_metrics_exporter.RequestMetricsExporterManager"
        ".exporter_enabled",
        group=Group.FRONTEND,
        used_by=("border.tokenizer_manager.call_records",),
        why="whether calls are exported",
        signature="(self)",
    ),
)

HEADER_USES = (
    Use(
        id="U345",
        target="sglang.srt.environ.Envs",
        group=Group.FRONTEND,
        used_by=(
            "border.tokenizer_manager.direct_generate",
            "border.model.sampler",
            "border.server_args.flags",
        ),
        why="whether headers change a request's fields, whether SGLang's sampler hides NaN, and "
        "whether held slots are taken for a leak",
        members=(
            *("SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES", "SGLANG_SANITIZE_NAN_LOGITS"),
            "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY",
        ),
    ),
)

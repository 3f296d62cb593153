"""What calls for log-probs, single tokens and plain HTTP bodies use of SGLang; a part of
`uses.USES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Use

_HTTP = "sglang.srt.entrypoints"
_IO = "sglang.srt.managers.io_struct"
_TIMES = "sglang.srt.observability.req_time_stats.APIServerReqTimeStats"
_TOKENIZER_MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"

TOKEN_USES = (
    Use(
        id="U130",
        target=f"{_IO}.TokenizedGenerateReqInput",
        group=Group.FRONTEND,
        used_by=("compat.token_hooks", "compat.token_output", "frontend.token_call"),
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
        used_by=("compat.token_output", "frontend.token_answer"),
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
        used_by=("compat.token_output",),
        why="with which weights a token was made",
        members=("version", "start", "end"),
    ),
    Use(
        id="U133",
        target=f"{_TOKENIZER_MANAGER}._handle_batch_output",
        group=Group.FRONTEND,
        used_by=("compat.token_hooks",),
        why="forms and delivers the answer",
        signature="(self, recv_obj)",
    ),
    Use(
        id="U134",
        target=f"{_TOKENIZER_MANAGER}._mark_state_dispatched",
        group=Group.FRONTEND,
        used_by=("compat.token_hooks",),
        why="a request that leaves early is aborted, not forgotten",
        signature="(self, rid)",
    ),
    Use(
        id="U135",
        target=f"{_TIMES}.set_api_server_dispatch_time",
        group=Group.FRONTEND,
        used_by=("compat.token_hooks",),
        why="when a request was sent, for SGLang's metrics",
        signature="(self, ts=None)",
    ),
    Use(
        id="U136",
        target=f"{_TIMES}.set_api_server_dispatch_finish_time",
        group=Group.FRONTEND,
        used_by=("compat.token_hooks",),
        why="likewise",
        signature="(self, ts=None)",
    ),
    Use(
        id="U137",
        target=f"{_HTTP}.openai.protocol.UsageInfo",
        group=Group.FRONTEND,
        used_by=("compat.embeddings_route", "compat.score_route"),
        why="the part of an answer that counts tokens",
        members=("prompt_tokens", "total_tokens"),
    ),
    Use(
        id="U138",
        target="sglang.srt.utils.request_logger.RequestLogger",
        group=Group.FRONTEND,
        used_by=("compat.embeddings_route", "compat.score_route"),
        why="whether SGLang has to see every request",
        members=("log_requests",),
    ),
    Use(
        id="U139",
        target=f"{_HTTP}.http_server.serve_generate_request",
        group=Group.FRONTEND,
        used_by=("compat.generate_route",),
        why="serves a request of `/generate` that was read already",
        signature="(obj, request)",
    ),
)

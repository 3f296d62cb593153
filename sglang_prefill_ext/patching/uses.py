"""The one list of what hooks use of SGLang as it is. Pure data: importing it imports nothing."""

from __future__ import annotations

from sglang_prefill_ext.patching.architecture_uses import ARCHITECTURE_USES
from sglang_prefill_ext.patching.embed_uses import EMBED_USES
from sglang_prefill_ext.patching.encoder_uses import ENCODER_USES
from sglang_prefill_ext.patching.gc_uses import GC_USES
from sglang_prefill_ext.patching.head_uses import HEAD_USES
from sglang_prefill_ext.patching.lora_uses import LORA_USES
from sglang_prefill_ext.patching.model_uses import MODEL_USES
from sglang_prefill_ext.patching.order_uses import ORDER_USES
from sglang_prefill_ext.patching.override_uses import OVERRIDE_USES, PLACE_USES, REFUSAL_USES
from sglang_prefill_ext.patching.prefix_uses import PREFIX_USES
from sglang_prefill_ext.patching.probe_uses import PROBE_USES
from sglang_prefill_ext.patching.record_uses import RECORD_USES
from sglang_prefill_ext.patching.replica_uses import REPLICA_USES
from sglang_prefill_ext.patching.rerank_uses import RERANK_USES
from sglang_prefill_ext.patching.scheduler_uses import SCHEDULER_USES
from sglang_prefill_ext.patching.spec import Group, Use
from sglang_prefill_ext.patching.text_uses import TEXT_USES
from sglang_prefill_ext.patching.token_uses import HEADER_USES, TOKEN_USES

_DP_CONTROLLER = "sglang.srt.managers.data_parallel_controller.DataParallelController"
_IO = "sglang.srt.managers.io_struct"
_TOKENIZER_MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"

_FLAG_USES = (
    Use(
        id="U01",
        target="sglang.srt.plugins.load_plugins",
        group=Group.FLAGS,
        used_by=("border.activation",),
        why="child processes in which SGLang loads no plugins",
        signature="()",
    ),
    Use(
        id="U02",
        target="sglang.srt.plugins.hook_registry.HookRegistry._apply_target",
        group=Group.FLAGS,
        used_by=("border.registry",),
        why="applies one hook at once",
        signature="(cls, target, hooks)",
    ),
    Use(
        id="U03",
        target="sglang.srt.plugins.hook_registry.HookSource",
        group=Group.FLAGS,
        used_by=("border.registry",),
        why="names this plugin in SGLang's messages",
        members=("plugin_name", "dist_name"),
    ),
    Use(
        id="U04",
        target="sglang.srt.arg_groups.model_override_base.resolving_view",
        group=Group.FLAGS,
        used_by=("border.server_args.flags", "border.dp_controller.several_schedulers"),
        why="arguments as far as SGLang has resolved them",
        signature="(server_args)",
    ),
    Use(
        id="U05",
        target="sglang.srt.runtime_context.attn_dp_enabled_of",
        group=Group.FLAGS,
        used_by=("border.server_args.flags",),
        why="a combination to refuse",
        signature="(cfg)",
    ),
    Use(
        id="U06",
        target="sglang.srt.server_args.ServerArgs",
        group=Group.FLAGS,
        used_by=(
            *(
                "border.server_args.flags",
                "border.tokenizer_manager.frontend_hooks",
                "border.tokenizer_manager.token_hooks",
                "border.dp_controller.dp_hooks",
            ),
            *(
                "border.dp_controller.several_schedulers",
                "border.tokenizer_manager.direct_generate",
                "border.tokenizer_manager.call_records",
            ),
            "border.scheduler.runtime_setup",
        ),
        why="the other combinations to refuse, what is not packed, and several schedulers",
        members=(
            *(
                "pp_size",
                "nnodes",
                "disaggregation_mode",
                "enable_pdmux",
                "smg_grpc_mode",
                "grpc_mode",
            ),
            *("enable_mis", "schedule_policy", "disable_radix_cache", "enable_watermark"),
            *("tokenizer_worker_num", "dp_size", "tp_size", "max_total_tokens", "device"),
            *("load_balance_method", "mem_fraction_static", "weight_cache_mode", "attn_dp_size"),
            *("enable_pd_role_switch", "speculative_algorithm", "attn_cp_size", "dcp_size"),
            *("moe_a2a_backend", "moe_dense_tp_size", "admin_api_key", "chunked_prefill_size"),
            *("allow_auto_truncate", "disable_cuda_graph"),
        ),
    ),
)

_FRONTEND_USES = (
    Use(
        id="U60",
        target=_TOKENIZER_MANAGER,
        group=Group.FRONTEND,
        used_by=(
            *(
                "border.tokenizer_manager.attached",
                "border.tokenizer_manager.frontend_hooks",
                "border.tokenizer_manager.frontend_link",
            ),
            *(
                "border.tokenizer_manager.adapter_lease",
                "border.tokenizer_manager.embed_hooks",
                "border.tokenizer_manager.rerank_hooks",
            ),
            *(
                "border.tokenizer_manager.text_hooks",
                "border.tokenizer_manager.direct_generate",
                "border.tokenizer_manager.chat_hooks",
            ),
            *(
                "border.tokenizer_manager.call_records",
                "border.tokenizer_manager.token_hooks",
                "border.tokenizer_manager.gc_frontend",
            ),
        ),
        why="limits, tokenizer, pauses, weight updates, records of requests",
        members=(
            *("server_args", "tokenizer", "model_config", "metrics_collector", "enable_metrics"),
            *("is_generation", "mm_processor", "_result_dispatcher", "is_pause", "is_pause_cond"),
            *("model_update_lock", "context_len", "num_reserved_tokens", "max_req_input_len"),
            *("lora_registry", "async_dynamic_batch_tokenizer", "enable_trace", "request_logger"),
            *("request_metrics_exporter_manager", "dump_requests_folder", "crash_dump_folder"),
            *("preferred_sampling_params", "sampling_params_class", "rid_to_state"),
            "allow_auto_truncate",
        ),
    ),
    Use(
        id="U61",
        target=f"{_TOKENIZER_MANAGER}._dispatch_to_scheduler",
        group=Group.FRONTEND,
        used_by=("border.tokenizer_manager.frontend_link",),
        why="sends packed requests and aborts",
        signature="(self, obj)",
    ),
    Use(
        id="U62",
        target=f"{_TOKENIZER_MANAGER}.auto_create_handle_loop",
        group=Group.FRONTEND,
        used_by=("border.tokenizer_manager.frontend_link",),
        why="starts the task that receives answers",
        signature="(self)",
    ),
    Use(
        id="U63",
        target="sglang.srt.utils.aio_rwlock.RWLock",
        group=Group.FRONTEND,
        used_by=("border.tokenizer_manager.frontend_link",),
        why="keeps weight updates away from requests under way",
        members=("reader_lock",),
    ),
    Use(
        id="U64",
        target=f"{_IO}.AbortReq",
        group=Group.FRONTEND,
        used_by=(
            "border.tokenizer_manager.frontend_link",
            "border.scheduler.scheduler_hooks",
            "border.scheduler.stock_embeds",
        ),
        why="ends the work of a client that left, and a request that is refused",
        members=("rid", "abort_all", "finished_reason"),
    ),
    Use(
        id="U65",
        target=f"{_IO}.GenerateReqInput",
        group=Group.FRONTEND,
        used_by=(
            "border.tokenizer_manager.frontend_hooks",
            "border.tokenizer_manager.text_hooks",
            "frontend.token.generate_api",
        ),
        why="the prompt to validate; a plain request of `/generate`; texts of a list",
        members=(
            *("input_ids", "input_embeds", "session_params", "contains_mm_input", "rid", "text"),
            *("sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num"),
            *("token_ids_logprob", "return_text_in_logprobs", "stream", "lora_path"),
            *("parallel_sample_num", "token_indices_to_pool"),
        ),
    ),
    Use(
        id="U66",
        target="sglang.srt.managers.tokenizer_manager_score_mixin.ScoreResult",
        group=Group.FRONTEND,
        used_by=(
            "border.tokenizer_manager.frontend_hooks",
            "border.tokenizer_manager.rerank_hooks",
        ),
        why="the answer to a scoring call",
        members=("scores", "prompt_tokens", "token_logprobs"),
    ),
    Use(
        id="U67",
        target="sglang.srt.observability.metrics_collector.TokenizerMetricsCollector",
        group=Group.FRONTEND,
        used_by=(
            "border.tokenizer_manager.frontend_hooks",
            "border.tokenizer_manager.stock_counters",
        ),
        why="labels of our metrics; counts packed prompts like requests",
        members=(
            *("labels", "_histogram_cls", "num_requests_total", "num_aborted_requests_total"),
            *("prompt_tokens_total", "generation_tokens_total", "cached_tokens_total"),
            *("prompt_tokens_histogram", "uncached_prompt_tokens_histogram"),
            *("generation_tokens_histogram", "histogram_e2e_request_latency"),
            "histogram_time_to_first_token",
        ),
    ),
    Use(
        id="U68",
        target="sglang.srt.runtime_context.num_dp_ranks_of",
        group=Group.FRONTEND,
        used_by=("border.tokenizer_manager.frontend_link",),
        why="how many replicas answer a status request",
        signature="(cfg)",
    ),
    Use(
        id="U69",
        target="sglang.srt.entrypoints.openai.serving_base.OpenAIServingBase.create_error_response",
        group=Group.FRONTEND,
        used_by=("border.http_server.http_errors", "border.tokenizer_manager.rerank_hooks"),
        why="answers errors in SGLang's form",
        signature="(self, message, err_type='BadRequestError', status_code=400, param=None)",
    ),
)

_DP_USES = (
    Use(
        id="U90",
        target=_DP_CONTROLLER,
        group=Group.DP_CONTROLLER,
        used_by=("border.dp_controller.dp_hooks", "border.dp_controller.several_schedulers"),
        why="balances packed requests like stock ones; starts several schedulers in turn",
        members=(
            *("server_args", "_request_dispatcher", "dispatching", "workers", "scheduler_procs"),
            *("refresh_load_budget_on_dispatch", "dp_budget", "_scheduler_init_infos"),
        ),
    ),
    Use(
        id="U91",
        target=f"{_DP_CONTROLLER}.refresh_load_budget",
        group=Group.DP_CONTROLLER,
        used_by=("border.dp_controller.dp_hooks",),
        why="fresh loads before a replica is chosen",
        signature="(self)",
    ),
)

USES: tuple[Use, ...] = (
    *_FLAG_USES,
    *SCHEDULER_USES,
    *MODEL_USES,
    *HEAD_USES,
    *_FRONTEND_USES,
    *PREFIX_USES,
    *ORDER_USES,
    *_DP_USES,
    *EMBED_USES,
    *RERANK_USES,
    *PROBE_USES,
    *TOKEN_USES,
    *ARCHITECTURE_USES,
    *OVERRIDE_USES,
    *GC_USES,
    *REPLICA_USES,
    *LORA_USES,
    *PLACE_USES,
    *ENCODER_USES,
    *HEADER_USES,
    *RECORD_USES,
    *TEXT_USES,
    *REFUSAL_USES,
)

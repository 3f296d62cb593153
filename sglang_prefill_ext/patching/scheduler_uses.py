"""What hooks use of SGLang's scheduler and its messages; a part of `uses.USES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Use

_MANAGERS = "sglang.srt.managers"
_COMPONENTS = f"{_MANAGERS}.scheduler_components"
_IO = f"{_MANAGERS}.io_struct"
_METRICS = "sglang.srt.observability.metrics_collector"
_SCHEDULER = f"{_MANAGERS}.scheduler.Scheduler"

SCHEDULER_USES = (
    Use(
        id="U10",
        target=_SCHEDULER,
        group=Group.SCHEDULER,
        used_by=(
            *(
                "border.scheduler.scheduler_hooks",
                "border.scheduler.scheduler_status",
                "border.scheduler.packed_work",
            ),
            *(
                "border.model.capability",
                "border.scheduler.radix",
                "border.scheduler.srpt_policy",
                "border.scheduler.ask_both_paths",
            ),
            "border.scheduler.runtime_setup",
            "border.scheduler.stock_embeds",
        ),
        why="dispatch, watchdog, answers, metrics, model, pools",
        members=(
            *("server_args", "_request_dispatcher", "forward_ct", "ipc_channels", "tp_worker"),
            *("enable_overlap", "forward_stream_ctx", "enable_lora", "is_generation", "tree_cache"),
            *("token_to_kv_pool_allocator", "req_to_token_pool", "enable_hierarchical_cache"),
            *("metrics_collector", "metrics_collector_context", "policy", "schedule_policy"),
            *("tp_cpu_group", "model_config", "max_req_input_len", "chunked_prefill_size"),
            *("enable_lora_overlap_loading", "spec_algorithm"),
        ),
    ),
    Use(
        id="U11",
        target=f"{_SCHEDULER}.maybe_send_health_check_signal",
        group=Group.SCHEDULER,
        used_by=("border.scheduler.scheduler_hooks",),
        why="health checks while packed work runs",
        signature="(self)",
    ),
    Use(
        id="U12",
        target="sglang.utils.TypeBasedDispatcher",
        group=Group.SCHEDULER,
        used_by=(
            *(
                "border.scheduler.scheduler_hooks",
                "border.tokenizer_manager.frontend_hooks",
                "border.dp_controller.dp_hooks",
            ),
            "border.scheduler.stock_embeds",
        ),
        why="registers handlers of our messages, and what refuses others",
        members=("_mapping",),
    ),
    Use(
        id="U13",
        target=f"{_COMPONENTS}.ipc_channels.SchedulerIpcChannels",
        group=Group.SCHEDULER,
        used_by=("border.scheduler.runtime_setup", "border.scheduler.stock_embeds"),
        why="the way of answers past the detokenizer",
        members=("send_to_tokenizer",),
    ),
    Use(
        id="U14",
        target=f"{_COMPONENTS}.output_sender.SenderWrapper.send_output",
        group=Group.SCHEDULER,
        used_by=("border.scheduler.runtime_setup", "border.scheduler.stock_embeds"),
        why="answers the front-end processes that asked",
        signature="(self, output, recv_obj=None)",
    ),
    Use(
        id="U15",
        target="sglang.srt.runtime_context.get_parallel",
        group=Group.SCHEDULER,
        used_by=(
            *(
                "border.scheduler.scheduler_status",
                "border.tokenizer_manager.frontend_link",
                "border.scheduler.runtime_setup",
            ),
            *("border.dp_controller.several_schedulers", "border.tokenizer_manager.gc_frontend"),
        ),
        why="rank and number of replicas",
        signature="()",
    ),
    Use(
        id="U16",
        target="sglang.srt.runtime_context.SpawnRanks",
        group=Group.SCHEDULER,
        used_by=(
            *(
                "border.scheduler.scheduler_status",
                "border.scheduler.runtime_setup",
                "border.dp_controller.several_schedulers",
            ),
        ),
        why="the rank of this replica",
        members=("dp_rank",),
    ),
    Use(
        id="U17",
        target=f"{_IO}.BaseReq",
        group=Group.SCHEDULER,
        used_by=(
            *(
                "border.messages",
                "border.scheduler.scheduler_hooks",
                "border.tokenizer_manager.frontend_link",
            ),
            "border.scheduler.runtime_setup",
        ),
        why="the base of our messages, and whom to answer",
        members=("rid", "http_worker_ipc"),
    ),
    Use(
        id="U18",
        target=f"{_IO}.hook_custom_types",
        group=Group.SCHEDULER,
        used_by=("border.messages",),
        why="lets msgpack decode our messages",
        signature="(*new_types)",
    ),
    Use(
        id="U19",
        target="sglang.srt.mem_cache.base_prefix_cache.BasePrefixCache",
        group=Group.SCHEDULER,
        used_by=("border.scheduler.scheduler_status", "border.scheduler.kv_pool"),
        why="the memory report of the status; how many slots there is room for",
        members=("evictable_size", "protected_size"),
    ),
    Use(
        id="U20",
        target="sglang.srt.mem_cache.allocator.BaseTokenToKVPoolAllocator",
        group=Group.SCHEDULER,
        used_by=(
            "border.scheduler.scheduler_status",
            "border.scheduler.kv_pool",
            "border.scheduler.ask_both_paths",
        ),
        why="the memory report; slots of a new prefix; how many known prompts a batch has room for",
        members=(
            *("available_size", "alloc", "free", "evict_to_free_tokens"),
            *("size", "page_size"),
        ),
    ),
    Use(
        id="U21",
        target="sglang.srt.mem_cache.memory_pool.ReqToTokenPool",
        group=Group.SCHEDULER,
        used_by=("border.scheduler.scheduler_status", "border.scheduler.ask_both_paths"),
        why="the memory report of the status; how many known prompts a batch has room for",
        members=("available_size",),
    ),
    Use(
        id="U22",
        target=f"{_MANAGERS}.schedule_batch.ScheduleBatch",
        group=Group.SCHEDULER,
        used_by=(
            "border.scheduler.scheduler_hooks",
            "border.scheduler.packed_work",
            "border.scheduler.ask_both_paths",
        ),
        why="whether generations run; the tokens of a stock batch; a batch of our own",
        members=(
            *("is_empty", "batch_size", "forward_mode", "extend_num_tokens"),
            *("input_ids", "prefill_input_ids_cpu", "device"),
        ),
    ),
    Use(
        id="U23",
        target=f"{_MANAGERS}.schedule_batch.NextBatchPlan",
        group=Group.SCHEDULER,
        used_by=("border.scheduler.scheduler_hooks",),
        why="the stock batch of an iteration",
        members=("batch_to_run",),
    ),
    Use(
        id="U24",
        target=f"{_METRICS}.SchedulerMetricsCollectorContext",
        group=Group.SCHEDULER,
        used_by=("border.scheduler.packed_work",),
        why="whether this rank shows metrics",
        members=("current_scheduler_metrics_enabled",),
    ),
    Use(
        id="U25",
        target=f"{_METRICS}.SchedulerMetricsCollector",
        group=Group.SCHEDULER,
        used_by=("border.scheduler.packed_work",),
        why="labels of our metrics",
        members=("labels",),
    ),
)

"""What records of packed calls, and their counts, use of SGLang; a part of `uses.USES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Use

_OBSERVABILITY = "sglang.srt.observability"
_COLLECTOR = f"{_OBSERVABILITY}.metrics_collector.SchedulerMetricsCollector"
_MANAGER = "sglang.srt.managers.tokenizer_manager"
_RECORDS = ("border.tokenizer_manager.call_records",)
_COUNTERS = ("border.tokenizer_manager.stock_counters",)

RECORD_USES = (
    Use(
        id="U350",
        target=f"{_MANAGER}.ReqState",
        group=Group.FRONTEND,
        used_by=_RECORDS,
        why="a call that is waited for on SIGTERM, and dumped in a crash",
        members=("out_list", "finished", "event", "obj", "time_stats"),
    ),
    Use(
        id="U351",
        target=f"{_OBSERVABILITY}.req_time_stats.APIServerReqTimeStats",
        group=Group.FRONTEND,
        used_by=(
            *_RECORDS,
            "border.tokenizer_manager.direct_generate",
            "border.tokenizer_manager.embed_hooks",
        ),
        why="when what happened to a call",
        members=(
            *"set_created_time set_api_server_dispatch_finish_time set_first_token_time".split(),
            *"set_finished_time finished_time get_e2e_latency".split(),
            *"convert_to_output_meta_info init_trace_ctx set_tokenize_finish_time".split(),
            "trace_slice",
        ),
    ),
    Use(
        id="U352",
        target="sglang.srt.utils.request_logger.RequestLogger.log_finished_request",
        group=Group.FRONTEND,
        used_by=_RECORDS,
        why="logs a call",
        signature="(self, obj, out, request=None)",
    ),
    Use(
        id="U353",
        target=f"{_OBSERVABILITY}.request_metrics_exporter.RequestMetricsExporterManager"
        ".write_record",
        group=Group.FRONTEND,
        used_by=_RECORDS,
        why="exports a call",
        signature="(self, obj, out_dict)",
    ),
    Use(
        id="U354",
        target=f"{_MANAGER}.TokenizerManager.dump_requests",
        group=Group.FRONTEND,
        used_by=_RECORDS,
        why="dumps a call",
        signature="(self, state, out_dict)",
    ),
    Use(
        id="U355",
        target=f"{_MANAGER}.TokenizerManager.record_request_for_crash_dump",
        group=Group.FRONTEND,
        used_by=_RECORDS,
        why="keeps a call for the dump of a crash",
        signature="(self, state, out_dict)",
    ),
    Use(
        id="U356",
        target=f"{_COLLECTOR}.increment_realtime_tokens",
        group=Group.SCHEDULER,
        used_by=_COUNTERS,
        why="counts tokens of packed forwards",
        signature="(self, dp_cooperation_info, prefill_compute_tokens=0, prefill_cache_tokens=0, "
        "decode_tokens=0)",
    ),
    Use(
        id="U357",
        target=f"{_COLLECTOR}.increment_effective_prefill_tokens",
        group=Group.SCHEDULER,
        used_by=_COUNTERS,
        why="likewise",
        signature="(self, input_tokens, device_hit_tokens, host_hit_tokens, storage_hit_tokens)",
    ),
    Use(
        id="U358",
        target=f"{_OBSERVABILITY}.req_time_stats.SchedulerReqTimeStats",
        group=Group.FRONTEND,
        used_by=(
            "border.tokenizer_manager.token_output",
            "border.tokenizer_manager.direct_generate",
        ),
        why="when the scheduler did what for a prompt",
        members=(
            *"forward_entry_time prefill_finished_time queue_duration_s".split(),
            *"storage_prefetch_wait_s storage_staging_wait_s convert_to_output_meta_info".split(),
        ),
    ),
    Use(
        id="U359",
        target=f"{_OBSERVABILITY}.req_time_stats.RequestStage",
        group=Group.FRONTEND,
        used_by=_RECORDS,
        why="names of the stages in a trace",
        members=("PREFILL_WAITING", "PREFILL_FORWARD"),
    ),
)

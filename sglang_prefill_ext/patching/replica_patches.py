"""What several schedulers on one device change in SGLang; a part of `table.PATCHES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Kind, Patch

_HOOKS = "sglang_prefill_ext.border.dp_controller.several_schedulers"
_CONTROLLER = "sglang.srt.managers.data_parallel_controller.DataParallelController"
_CONFIGURATOR = "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator"

_DIFF = ("0020-several-replicas-on-a-gpu.patch",)

REPLICA_PATCHES: tuple[Patch, ...] = (
    Patch(
        id="P46",
        target=f"{_CONTROLLER}.launch_tensor_parallel_group",
        kind=Kind.AROUND,
        hook=f"{_HOOKS}:start_in_turn",
        group=Group.DP_CONTROLLER,
        why="--prefill-only-schedulers would start each scheduler on a GPU of its own, all at "
        "once, so that none could tell how much memory the others are about to take.",
        signature="(self, server_args, port_args, base_gpu_id, dp_rank, worker_ports=None)",
        relies_on=("base_gpu_id", "mp.Process", "self._record_scheduler_init_infos"),
        fingerprints={"0.5.23": "287dacd5e3f0b7ba2f510e5d9f7143223a9cdc8d768ab8c83e77aed65523c0ed"},
        diffs=_DIFF,
        remove_when=(f"{_CONTROLLER}.first_gpu_of_replica",),
    ),
    Patch(
        id="P47",
        target=f"{_CONFIGURATOR}._profile_available_bytes",
        kind=Kind.AFTER,
        hook=f"{_HOOKS}:share_room",
        group=Group.SCHEDULER,
        why="The first of several schedulers on a device would take all memory for K/V.",
        signature="(self, pre_model_load_memory)",
        relies_on=(
            *("available_gpu_memory", "rest_memory", "pre_model_load_memory"),
            "get_schedule",
        ),
        fingerprints={"0.5.23": "c38fae5381899c9f5fd2e30e92ec71258699a0d9fc7ceba4a6e5fa52e5cb7d73"},
        diffs=_DIFF,
        remove_when=(f"{_CONFIGURATOR}._share_of_room",),
    ),
)

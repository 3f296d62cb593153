"""What several schedulers on one device use of SGLang; a part of `uses.USES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Use

_MANAGERS = "sglang.srt.managers"
_DP = f"{_MANAGERS}.data_parallel_controller"

REPLICA_USES = (
    Use(
        id="U280",
        target=f"{_MANAGERS}.io_struct.sock_send",
        group=Group.DP_CONTROLLER,
        used_by=("border.dp_controller.dp_hooks",),
        why="sends a packed request to its scheduler",
        signature="(socket, obj, flags=0)",
    ),
    Use(
        id="U281",
        target="sglang.srt.utils.watchdog.SubprocessWatchdog",
        group=Group.DP_CONTROLLER,
        used_by=("border.dp_controller.dp_hooks",),
        why="ends the server when a replica dies",
        members=("start",),
    ),
    Use(
        id="U282",
        target=f"{_DP}.DPBudget.dispatch",
        group=Group.DP_CONTROLLER,
        used_by=("shared_device.balance",),
        why="whose place our balance takes for stock requests",
        signature="(self, method, estimated_tokens=0)",
    ),
    Use(
        id="U283",
        target=f"{_DP}.DPBudget.update_budget",
        group=Group.DP_CONTROLLER,
        used_by=("shared_device.balance",),
        why="likewise",
        signature="(self, loads)",
    ),
    Use(
        id="U284",
        target=f"{_MANAGERS}.load_snapshot.LoadSnapshot",
        group=Group.DP_CONTROLLER,
        used_by=("shared_device.balance",),
        why="the load of stock requests",
        members=(*("timestamp", "dp_rank", "num_used_tokens", "num_waiting_uncached_tokens"),),
    ),
    Use(
        id="U285",
        target="sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator",
        group=Group.SCHEDULER,
        used_by=("border.dp_controller.several_schedulers",),
        why="whose memory is divided",
        members=("server_args",),
    ),
)

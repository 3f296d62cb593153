"""What control of garbage collection uses of SGLang; a part of `uses.USES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Use

_MANAGERS = "sglang.srt.managers"
_CONTEXT = "sglang.srt.runtime_context"

GC_USES = (
    Use(
        id="U270",
        target=f"{_MANAGERS}.io_struct.FreezeGCReq",
        group=Group.FRONTEND,
        used_by=("border.messages", "border.tokenizer_manager.gc_frontend", "border.gc_control"),
        why="a message that reaches every detokenizer",
        members=("gc_threshold", "rid", "http_worker_ipc"),
    ),
    Use(
        id="U271",
        target=f"{_MANAGERS}.multi_tokenizer_mixin.SocketMapping",
        group=Group.FRONTEND,
        used_by=("border.tokenizer_manager.gc_frontend", "border.gc_control"),
        why="from one tokenizer worker to another",
        members=("send_output",),
    ),
    Use(
        id="U272",
        target=f"{_MANAGERS}.multi_tokenizer_mixin.MultiTokenizerRouter",
        group=Group.FRONTEND,
        used_by=("border.gc_control",),
        why="which tokenizer workers there are",
        members=("all_worker_ipcs", "socket_mapping"),
    ),
    Use(
        id="U273",
        target=f"{_CONTEXT}.get_serving",
        group=Group.FRONTEND,
        used_by=(
            *(
                "border.gc_control",
                "border.tokenizer_manager.gc_frontend",
                "border.scheduler.scheduler_hooks",
            ),
            "border.tokenizer_manager.text_hooks",
        ),
        why="how many processes there are, the model's name, how lists of texts are encoded",
        signature="()",
    ),
    Use(
        id="U274",
        target=f"{_CONTEXT}.get_device",
        group=Group.FRONTEND,
        used_by=("border.tokenizer_manager.gc_frontend",),
        why="thresholds of garbage collection",
        signature="()",
    ),
    Use(
        id="U275",
        target=f"{_CONTEXT}.get_observability",
        group=Group.FRONTEND,
        used_by=("border.gc_control",),
        why="whether there are metrics",
        signature="()",
    ),
    Use(
        id="U276",
        target=f"{_MANAGERS}.detokenizer_manager.DetokenizerManager",
        group=Group.DETOKENIZER,
        used_by=("border.gc_control",),
        why="handles our message, and sends it on",
        members=("_request_dispatcher",),
    ),
    Use(
        id="U277",
        target=f"{_MANAGERS}.data_parallel_controller.DataParallelController.send_control_message",
        group=Group.DP_CONTROLLER,
        used_by=("border.dp_controller.dp_hooks",),
        why="a message to all replicas",
        signature="(self, obj)",
    ),
    Use(
        id="U278",
        target="sglang.srt.utils.auth.auth_level",
        group=Group.FRONTEND,
        used_by=("border.http_server.gc_route", "border.http_server.own_routes"),
        why="our administrative routes are protected like SGLang's",
        signature="(level)",
    ),
    Use(
        id="U279",
        target="sglang.srt.utils.auth.AuthLevel",
        group=Group.FRONTEND,
        used_by=("border.http_server.gc_route", "border.http_server.own_routes"),
        why="likewise",
        members=("ADMIN_OPTIONAL",),
    ),
)

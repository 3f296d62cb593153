"""Changes to SGLang's server arguments, detokenizers and data-parallel controller; part of
`table.PATCHES`."""

from __future__ import annotations

from functools import partial

from sglang_prefill_ext.patching.spec import Group, Kind, Patch

_BORDER = "sglang_prefill_ext.border"
_FLAGS = f"{_BORDER}.server_args.flags"
_CONTROLLER_HOOKS = f"{_BORDER}.dp_controller"
_SERVER_ARGS = "sglang.srt.server_args.ServerArgs"
_CONTROLLER = "sglang.srt.managers.data_parallel_controller.DataParallelController"

_after = partial(Patch, kind=Kind.AFTER, group=Group.FLAGS)

PROCESS_PATCHES: tuple[Patch, ...] = (
    _after(
        id="P01",
        target=f"{_SERVER_ARGS}.add_cli_args",
        hook=f"{_FLAGS}:add_flags",
        why="SGLang's parser would not know our flags.",
        relies_on="parser.add_argument",
        diffs="0002",
    ),
    _after(
        id="P02",
        target=f"{_SERVER_ARGS}.from_cli_args",
        hook=f"{_FLAGS}:attach_config",
        why="Our flags would be lost: SGLang copies only declared fields.",
        relies_on="record_fields args",
        diffs="0002",
    ),
    Patch(
        id="P03",
        target="sglang.srt.entrypoints.engine.Engine.server_args_class",
        kind=Kind.ATTRIBUTE,
        hook=f"{_FLAGS}:server_args_from_kwargs",
        group=Group.FLAGS,
        why="Engine(enable_prefill_only=True) would fail, as an unknown keyword.",
        relies_on="self.server_args_class",
        diffs="0002",
        only_if_imported=True,
    ),
    _after(
        id="P04",
        target=f"{_SERVER_ARGS}.check_server_args",
        hook=f"{_FLAGS}:refuse_impossible",
        why="SGLang would accept flags with which nothing can be packed.",
        relies_on="check_server_args",
        diffs="0002",
    ),
    Patch(
        id="P30",
        target=f"{_CONTROLLER}.init_dispatcher",
        kind=Kind.AFTER,
        hook=f"{_CONTROLLER_HOOKS}.dp_hooks:route_packed",
        group=Group.DP_CONTROLLER,
        why="Every replica would do all packed work, and nobody would notice a killed one.",
        relies_on="self._request_dispatcher TypeBasedDispatcher self.send_control_message",
        diffs="0003 0022",
    ),
    Patch(
        id="P44",
        target="sglang.srt.managers.detokenizer_manager.DetokenizerManager.init_request_dispatcher",
        kind=Kind.AFTER,
        hook=f"{_BORDER}.gc_control:attach_detokenizer",
        group=Group.DETOKENIZER,
        why="Detokenizers would freeze, but not collect before, unfreeze or report.",
        relies_on="self._request_dispatcher TypeBasedDispatcher FreezeGCReq",
        diffs="0021",
    ),
    Patch(
        id="P46",
        target=f"{_CONTROLLER}.launch_tensor_parallel_group",
        kind=Kind.AROUND,
        hook=f"{_CONTROLLER_HOOKS}.several_schedulers:start_in_turn",
        group=Group.DP_CONTROLLER,
        why="Several schedulers would start at once, on a GPU each.",
        relies_on="base_gpu_id mp.Process self._record_scheduler_init_infos",
        diffs="0020",
    ),
)

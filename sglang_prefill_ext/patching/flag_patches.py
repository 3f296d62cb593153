"""Changes to SGLang's server arguments; part of `table.PATCHES`."""

from __future__ import annotations

from functools import partial

from sglang_prefill_ext.patching.spec import Group, Kind, Patch

_FLAGS = "sglang_prefill_ext.border.server_args.flags"
_SERVER_ARGS = "sglang.srt.server_args.ServerArgs"

_ARGUMENTS = ("0002-plugin-server-arguments.patch",)

_after = partial(Patch, kind=Kind.AFTER, group=Group.FLAGS)

FLAG_PATCHES: tuple[Patch, ...] = (
    _after(
        id="P01",
        target=f"{_SERVER_ARGS}.add_cli_args",
        hook=f"{_FLAGS}:add_flags",
        why="SGLang's parser would not know our flags.",
        relies_on="parser.add_argument",
        diffs=_ARGUMENTS,
    ),
    _after(
        id="P02",
        target=f"{_SERVER_ARGS}.from_cli_args",
        hook=f"{_FLAGS}:attach_config",
        why="SGLang copies only declared fields from the command line, so our flags would be lost.",
        relies_on="record_fields args",
        diffs=_ARGUMENTS,
    ),
    Patch(
        id="P03",
        target="sglang.srt.entrypoints.engine.Engine.server_args_class",
        kind=Kind.ATTRIBUTE,
        hook=f"{_FLAGS}:server_args_from_kwargs",
        group=Group.FLAGS,
        why="Engine(enable_prefill_only=True) would fail: ServerArgs refuses unknown keywords.",
        relies_on="self.server_args_class",
        diffs=_ARGUMENTS,
        only_if_imported=True,
    ),
    _after(
        id="P04",
        target=f"{_SERVER_ARGS}.check_server_args",
        hook=f"{_FLAGS}:refuse_impossible",
        why="SGLang would accept flags with which packed requests can never run.",
        relies_on="check_server_args",
        diffs=_ARGUMENTS,
    ),
)

"""What is changed in SGLang's arguments; a part of `table.PATCHES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Kind, Patch

_FLAGS = "sglang_prefill_ext.border.server_args.flags"
_SERVER_ARGS = "sglang.srt.server_args.ServerArgs"

_ARGUMENTS = ("0002-plugin-server-arguments.patch",)

FLAG_PATCHES: tuple[Patch, ...] = (
    Patch(
        id="P01",
        target=f"{_SERVER_ARGS}.add_cli_args",
        kind=Kind.AFTER,
        hook=f"{_FLAGS}:add_flags",
        group=Group.FLAGS,
        why="SGLang's parser would not know --enable-prefill-only and its knobs.",
        signature="(parser)",
        relies_on="parser.add_argument",
        fingerprints={"0.5.23": "af9b7887090bb720a8855b81805392a485f830d3ac5f0c565b23eb85a1b0d95f"},
        diffs=_ARGUMENTS,
    ),
    Patch(
        id="P02",
        target=f"{_SERVER_ARGS}.from_cli_args",
        kind=Kind.AFTER,
        hook=f"{_FLAGS}:attach_config",
        group=Group.FLAGS,
        why="Only declared fields are copied from the command line: our flags would be dropped.",
        signature="(cls, args)",
        relies_on="record_fields args",
        fingerprints={"0.5.23": "8e4a5631cf3ea5ec16238d33745e6ac6d598dde7bbef4ec1b3c6a5a745394916"},
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
    Patch(
        id="P04",
        target=f"{_SERVER_ARGS}.check_server_args",
        kind=Kind.AFTER,
        hook=f"{_FLAGS}:refuse_impossible",
        group=Group.FLAGS,
        why="Combinations under which packed work could never run would be accepted in silence.",
        signature="(self)",
        relies_on="check_server_args",
        fingerprints={"0.5.23": "2cdfa63e9fa39693f01be1cb69a5b7f9b68af880fbba5adebb772eb7a0ea74b3"},
        diffs=_ARGUMENTS,
    ),
)

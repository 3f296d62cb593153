"""Check the flags of a server without starting it: ``python -m ...flag_check FLAGS...``.

Prints device and number of ranks, which a fleet needs, as JSON. If SGLang refuses the flags, its
message is on standard error.
"""

from __future__ import annotations

import argparse
import json
import sys

from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import ServerArgs
from sglang.srt.utils.server_args_config_parser import ConfigArgumentMerger

from sglang_prefill_ext.config import config_from_mapping
from sglang_prefill_ext.errors import ConfigError


def main() -> None:
    load_plugins()
    parser = argparse.ArgumentParser(prog="sglang serve", add_help=False)
    ServerArgs.add_cli_args(parser)
    argv = sys.argv[1:]
    if "--config" in argv:
        argv = ConfigArgumentMerger(parser).merge_config_with_args(argv)
    args = parser.parse_args(argv)
    try:
        config_from_mapping(vars(args))
    except ConfigError as error:
        raise SystemExit(str(error)) from error
    for flag, given in {"--use-ray": args.use_ray, "--nnodes": args.nnodes > 1}.items():
        if given:
            raise SystemExit(f"{flag}: an engine of a fleet has all of its processes on one node")
    ranks = args.tp_size * args.pp_size * args.dp_size
    print(json.dumps({"device": args.device or "", "ranks": ranks}))  # noqa: T201


if __name__ == "__main__":
    main()

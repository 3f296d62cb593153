"""Hooks on `ServerArgs` and `Engine`: add our flags, and refuse combinations that cannot work."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from sglang.srt.arg_groups.model_override_base import resolving_view
from sglang.srt.environ import Envs
from sglang.srt.runtime_context import attn_dp_enabled_of
from sglang.srt.server_args import ServerArgs

from sglang_prefill_ext.attach.address import ENGINE_FLAG, checked_path, claim
from sglang_prefill_ext.attach.carrier import FACTS_PATH
from sglang_prefill_ext.border import activation
from sglang_prefill_ext.border.dp_controller.several_schedulers import ask_for_replicas
from sglang_prefill_ext.config import ENABLE_FIELD, PrefillOnlyConfig, config_from_mapping
from sglang_prefill_ext.config.knobs import KNOB_PREFIX, flag_name, kind_of, shown_default
from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.scheduling import stock_order
from sglang_prefill_ext.texts.libraries import require_installed

_METAVARS = {int: "N", str: "PATH"}


def add_flags(_result: None, parser: argparse.ArgumentParser) -> None:
    """AFTER `ServerArgs.add_cli_args`: add our flags."""
    group = parser.add_argument_group("prefill-only serving (sglang-prefill-ext)")
    group.add_argument(
        "--enable-prefill-only",
        action="store_true",
        help="Serve requests that only read prompts (scores, embeddings, log-probs, one token) as "
        "packed forwards. SGLang serves all others, but texts may be encoded by faster libraries, "
        "experts computed in other blocks, garbage collection frozen, and requests refused that "
        "would crash it, or whose heads are unfinished after 16 KiB.",
    )
    for knob in fields(PrefillOnlyConfig):
        group.add_argument(
            flag_name(knob.name),
            type=int if kind_of(knob) is int else str,
            default=None,
            metavar=_METAVARS.get(kind_of(knob), "NAME"),
            help=f"{knob.metadata['help']} Default: {shown_default(knob)}.",
        )
    _offer_policy(parser)


def attach_config(server_args: Any, _cls: type, args: argparse.Namespace) -> None:
    """AFTER `ServerArgs.from_cli_args`: keep our flags, which SGLang drops as unknown.

    Raises:
        SystemExit: a knob is wrong, there is no GPU and no `--device cpu`, or the installed SGLang
            differs from the patch table.
    """
    try:
        _attach(server_args, vars(args))
    except ConfigError as error:
        raise SystemExit(str(error)) from error


def server_args_from_kwargs(**kwargs: Any) -> Any:
    """Replaces `Engine.server_args_class`: `ServerArgs` that accept our keyword arguments, too.

    Raises:
        ConfigError: a knob is wrong, or there is no GPU and no `device="cpu"`.
    """
    names = (ENABLE_FIELD, *(KNOB_PREFIX + knob.name for knob in fields(PrefillOnlyConfig)))
    ours = {name: kwargs.pop(name) for name in names if name in kwargs}
    server_args = ServerArgs(**kwargs)
    _attach(server_args, ours)
    return server_args


def refuse_impossible(_result: None, server_args: Any) -> None:
    """AFTER `ServerArgs.check_server_args`: exit if packed forwards could never run.

    Raises:
        SystemExit: a check of those below fails.
    """
    config = activation.config_of(server_args)
    if config is None:
        if server_args.schedule_policy == stock_order.POLICY:
            raise SystemExit(
                f"--schedule-policy {stock_order.POLICY} needs --enable-prefill-only; add that "
                "flag, or choose a policy of SGLang: hrrn and shortest-prefill-first are the "
                "nearest."
            )
        return
    try:
        require_installed(config.tokenizer)
        if config.attach:
            claim(checked_path(config.attach, flag=ENGINE_FLAG))
    except ConfigError as error:
        raise SystemExit(str(error)) from error
    conflicts = list(_conflicts(resolving_view(server_args), config))
    if conflicts:
        raise SystemExit(
            "--enable-prefill-only cannot be combined with "
            + "; ".join(conflicts)
            + ". Remove either; without --enable-prefill-only the server is plain SGLang."
        )


def _offer_policy(parser: argparse.ArgumentParser) -> None:
    """Add our policy to the choices of ``--schedule-policy``, without changing SGLang's list."""
    for action in parser._actions:
        if action.dest == "schedule_policy":
            action.choices = [*(action.choices or ()), stock_order.POLICY]
            action.help = (
                f"{action.help} {stock_order.POLICY}: shortest remaining prefill first, with "
                "ageing; needs --enable-prefill-only."
            )


def _attach(server_args: Any, values: dict[str, Any]) -> None:
    config = config_from_mapping(values)
    if config is None:
        return
    ask_for_replicas(server_args, config)
    if server_args.device is None and activation.is_on_our_platform():
        # SGLang fails later, at the device that it takes for a name.
        raise ConfigError(
            "SGLang finds no GPU here. Check the driver; or, for tests, run on the CPU with "
            "--device cpu --dtype float32."
        )
    # Every router process of a fleet asks for it each second.
    unlogged = [*server_args.uvicorn_access_log_exclude_prefixes, FACTS_PATH]
    server_args.uvicorn_access_log_exclude_prefixes = list(dict.fromkeys(unlogged))
    activation.attach(server_args, config)


def _conflicts(args: Any, config: PrefillOnlyConfig) -> Iterator[str]:
    """Yield each flag with which packed forwards cannot run, and why."""
    if args.pp_size > 1:
        yield f"--pp-size {args.pp_size} (stages exchange micro-batches of stock requests)"
    if attn_dp_enabled_of(args):
        yield "--attn-dp-size > 1 (every rank must join every forward)"
    yield from _divided_tokens(args)
    if config.attach and args.tokenizer_worker_num > 1:
        yield (
            f"--tokenizer-worker-num {args.tokenizer_worker_num} "
            "(with --prefill-only-attach: several processes cannot share one socket)"
        )
    if args.admin_api_key and args.tokenizer_worker_num > 1:
        yield (
            f"--admin-api-key (with --tokenizer-worker-num {args.tokenizer_worker_num}: SGLang "
            "asks for no key there, and administrative routes, ours among them, are open)"
        )
    if args.use_ray:
        yield (
            "--use-ray (SGLang loads no plugins in its scheduler actors; `sglang-prefill fleet "
            "--model-path` runs engines on Ray)"
        )
    if args.nnodes > 1:
        yield f"--nnodes {args.nnodes} (not verified)"
    if args.disaggregation_mode == "decode":
        yield "--disaggregation-mode decode (it computes no prompts; prefill servers take the flag)"
    if config.schedulers > 1 and args.disaggregation_mode == "prefill":
        yield "--disaggregation-mode prefill (with --prefill-only-schedulers: not verified)"
    if args.enable_pd_role_switch:
        yield "--enable-pd-role-switch (a server that decodes computes no prompts)"
    if args.enable_pdmux:
        yield "--enable-pdmux (it has an event loop of its own)"
    if args.smg_grpc_mode or args.grpc_mode:
        yield "--smg-grpc-mode (it has no tokenizer manager)"
    if os.environ.get("SGLANG_RUST_SERVER", "").lower() in ("1", "true", "yes", "on"):
        yield "SGLANG_RUST_SERVER (it has no tokenizer manager)"
    if Envs.SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY.get():
        yield (
            "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY (it takes the slots of a packed request's "
            "prefix for a leak and ends the scheduler)"
        )


def _divided_tokens(args: Any) -> Iterator[str]:
    """Yield each flag by which ranks divide the tokens of a forward, or their K/V."""
    if args.attn_cp_size > 1:
        yield f"--attn-cp-size {args.attn_cp_size} (ranks divide a prompt between them)"
    if args.dcp_size > 1:
        yield f"--dcp-size {args.dcp_size} (ranks divide the K/V of a prompt between them)"
    if args.moe_a2a_backend != "none":
        yield (
            f"--moe-a2a-backend {args.moe_a2a_backend} "
            "(its exchanges are set up for SGLang's own batches)"
        )
    if args.tp_size > 1 and args.moe_dense_tp_size is not None:
        yield f"--moe-dense-tp-size {args.moe_dense_tp_size} (ranks divide tokens between them)"
    if args.enable_layernorm_sp:
        yield "--enable-layernorm-sp (ranks divide the tokens of a prefill between them)"

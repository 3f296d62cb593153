"""`sglang-prefill fleet --model-path`: check what was asked for, then have Serve run it."""

from __future__ import annotations

import logging
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass

import msgspec

from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.fleet.ray_serve import cluster, deployments
from sglang_prefill_ext.fleet.ray_serve.launch import Launch, Replicas, needs_of
from sglang_prefill_ext.fleet.settings import Settings, reserved_ports
from sglang_prefill_ext.process.children import module_command

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asks for.

    Attributes:
        address: of a cluster; empty for one of its own.
        cpus: of an engine.
        target_tokens, up_s, down_s: see `deployments.autoscaling_of`.
        routers: nodes on which routers listen.
        processes: of each of those.
    """

    launch: Launch
    replicas: Replicas
    settings: Settings
    address: str = ""
    cpus: float = 1.0
    target_tokens: float = 0.0
    up_s: float = 30.0
    down_s: float = 600.0
    routers: int = 1
    processes: int = 1


class _Known(msgspec.Struct, frozen=True):
    """See `border/server_args/flag_check.py`."""

    device: str
    ranks: int


def run(asked: Asked) -> None:
    """Run a fleet until SIGTERM in a cluster of its own; in another one, until it is up.

    Raises:
        ConfigError: a flag is wrong, also one of SGLang.
        ClusterError: there is no cluster, or it has too little room.
        ServerStartError: an engine does not start.
    """
    settings = asked.settings
    if not asked.address:
        with reserved_ports(settings) as settings:
            pass  # routers, which share their ports, are started by Ray
    elif 0 in (settings.port, settings.grpc_port):
        raise ConfigError("--port 0, --grpc-port 0: with --address, say where routers listen.")
    known = _checked(asked.launch)
    with ExitStack() as stack:
        stack.enter_context(cluster.connected(asked.address))
        stop = stack.enter_context(cluster.told_to_stop())
        if not asked.replicas.most:
            deployments.take_down()
            return
        needs = needs_of(known.ranks, known.device, asked.cpus, cluster.node_resources())
        logger.info("Engines: %d, each on %s.", asked.replicas.least, needs)
        scaling = (asked.target_tokens, asked.up_s, asked.down_s)
        deployments.deploy(
            asked.launch,
            asked.replicas,
            needs,
            settings,
            routers=asked.routers,
            processes=asked.processes,
            autoscaling=deployments.autoscaling_of(asked.replicas, *scaling),
        )
        if not asked.address:
            stack.callback(deployments.take_down)
        deployments.wait_up(stop)
        if not stop.is_set():
            logger.info("The fleet is up, at %s.", ", ".join(deployments.router_urls()))
        if not asked.address:
            stop.wait()


def _checked(launch: Launch) -> _Known:
    """Have SGLang read the flags of an engine.

    Raises:
        ConfigError: it refuses them.
    """
    flags = ("--model-path", launch.model_path, "--enable-prefill-only", *launch.flags)
    command = module_command("sglang_prefill_ext.border.server_args.flag_check", *flags)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        told = done.stderr.strip().splitlines() or ["it says nothing"]
        raise ConfigError(
            f"SGLang refuses the flags of the engines: {told[-1]}. "
            "`sglang serve --help` lists them all."
        )
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=_Known)

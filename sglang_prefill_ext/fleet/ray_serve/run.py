"""`sglang-prefill fleet --model-path`: checks the flags, then has Ray Serve run the fleet."""

from __future__ import annotations

import logging
import subprocess
from contextlib import ExitStack

import msgspec

from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.fleet.ray_serve import cluster, deployments
from sglang_prefill_ext.fleet.ray_serve.launch import Launch, Replicas, needs_of
from sglang_prefill_ext.fleet.settings import Settings, reserved_ports
from sglang_prefill_ext.process.children import module_command

logger = logging.getLogger(__name__)


class _Known(msgspec.Struct, frozen=True):
    """See `border/server_args/flag_check.py`."""

    device: str
    ranks: int


def run(
    launch: Launch,
    replicas: Replicas,
    settings: Settings,
    *,
    address: str,
    cpus: float,
    target_tokens: float,
    up_s: float,
    down_s: float,
    routers: int,
    processes: int,
) -> None:
    """Run a fleet in a cluster of its own until SIGTERM; or start it in another one and return.

    Args:
        address: of a cluster; empty for one of its own.
        cpus: cores of an engine.
        target_tokens, up_s, down_s: see `deployments.autoscaling_of`.
        routers: number of nodes on which routers listen.
        processes: router processes on each of those nodes.

    Raises:
        ConfigError: a flag is wrong, also one of SGLang.
        ClusterError: there is no cluster, or it has too little room.
        ServerStartError: an engine does not start.
    """
    if not address:
        if not replicas.most:
            raise ConfigError(
                "--replicas 0: it ends the fleet of a cluster that runs. Give the cluster with "
                "--address: auto on the same machine, or host:6379."
            )
        with reserved_ports(settings) as settings:
            pass  # only to choose and check them: Ray starts the routers, which share these ports
    elif 0 in (settings.port, settings.grpc_port):
        raise ConfigError("--port 0, --grpc-port 0: with --address, say where routers listen.")
    known = _checked(launch)
    with ExitStack() as stack:
        stack.enter_context(cluster.connected(address))
        stop = stack.enter_context(cluster.told_to_stop())
        if not replicas.most:
            deployments.take_down()
            return
        needs = needs_of(known.ranks, known.device, cpus, cluster.node_resources())
        logger.info("Engines: %d, each on %s.", replicas.least, needs)
        deployments.deploy(
            launch,
            replicas,
            needs,
            settings,
            routers=routers,
            processes=processes,
            autoscaling=deployments.autoscaling_of(replicas, target_tokens, up_s, down_s),
        )
        if not address:
            stack.callback(deployments.take_down)
        deployments.wait_up(stop)
        if not stop.is_set():
            logger.info("The fleet is up, at %s.", ", ".join(deployments.router_urls()))
        if not address:
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
            "`python -m sglang.launch_server --help` lists them all."
        )
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=_Known)

"""Has Ray Serve run the engines and the routers of a fleet, on the connected cluster."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from typing import Any

import msgspec
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from ray.serve.schema import ApplicationStatus

from sglang_prefill_ext.errors import ServerStartError
from sglang_prefill_ext.fleet.ray_serve.autoscaling import OutstandingTokens
from sglang_prefill_ext.fleet.ray_serve.cluster import node_resources
from sglang_prefill_ext.fleet.ray_serve.engine import STOP_S, EngineReplica
from sglang_prefill_ext.fleet.ray_serve.launch import (
    ENGINES,
    ROUTERS,
    Launch,
    Needs,
    Replicas,
    require_room,
    surge_percent,
)
from sglang_prefill_ext.fleet.ray_serve.routers import RouterReplica
from sglang_prefill_ext.fleet.settings import Settings

logger = logging.getLogger(__name__)

_ANSWER_S = 5.0
_POLL_S = 0.5
_MOST_QUESTIONS = 1000
"""Most engines that a router listens to at once. If Serve's default of 5 of them wait for a process
that hangs, the others would be silent, and so forgotten."""

_SLACK_S = 60.0
"""Extra time before Serve kills a replica that should have ended by itself."""

_WATCHED: dict[str, Any] = {
    "health_check_period_s": 1.0,
    "health_check_timeout_s": 30.0,
    "graceful_shutdown_wait_loop_s": 0.1,  # no request comes through Serve
    "max_constructor_retry_count": 2,
}
"""How Serve watches and ends every replica."""


def deploy(
    launch: Launch,
    replicas: Replicas,
    needs: Needs,
    settings: Settings,
    *,
    routers: int = 1,
    processes: int = 1,
    autoscaling: AutoscalingConfig | None = None,
    engine_class: type[EngineReplica] = EngineReplica,
) -> None:
    """Start a fleet, or change the one that runs; returns at once.

    Engines and routers whose flags have changed are replaced one after the other.

    Args:
        routers: number of nodes on which routers listen.
        processes: router processes on each of those nodes.
        autoscaling: given if `replicas` is a range.

    Raises:
        ClusterError: the cluster has too little room.
    """
    nodes = node_resources()
    require_room(replicas.least, needs, nodes)
    serve.start(proxy_location="Disabled")
    router = serve.deployment(
        RouterReplica,
        name=ROUTERS,
        num_replicas=routers,
        # A single replica is replaced after the new one has started: they share the port meanwhile.
        **({"max_replicas_per_node": 1} if routers > 1 else {"max_surge_percent": 100}),
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=_MOST_QUESTIONS,
        graceful_shutdown_timeout_s=settings.grace_s + _SLACK_S,
        **_WATCHED,
    )
    targets = [_target(router, settings, processes, launch.api_key)]
    count = {"autoscaling_config": autoscaling} if autoscaling else {"num_replicas": replicas.least}
    engine = serve.deployment(
        engine_class,
        name=ENGINES,
        ray_actor_options={"num_cpus": needs.cpus, "num_gpus": needs.gpus},
        graceful_shutdown_timeout_s=2 * launch.drain_s + STOP_S + _SLACK_S,
        max_surge_percent=surge_percent(replicas, needs, nodes),
        **_WATCHED,
        **count,
    )
    targets.append(_target(engine, launch, scales=replicas.scales))
    serve.run_many(targets, wait_for_applications_running=False)


def autoscaling_of(
    replicas: Replicas, target_tokens: float, up_s: float, down_s: float
) -> AutoscalingConfig | None:
    """Return Serve's configuration of autoscaling; None if the number of engines is fixed.

    Args:
        target_tokens: outstanding tokens that an engine should have.
        up_s, down_s: for how long more, or fewer, engines have to be wanted before that changes.
    """
    if not replicas.scales:
        return None
    policy = AutoscalingPolicy(
        policy_function=OutstandingTokens, policy_kwargs={"target_tokens": target_tokens}
    )
    return AutoscalingConfig(
        min_replicas=replicas.least,
        max_replicas=replicas.most,
        upscale_delay_s=up_s,
        downscale_delay_s=down_s,
        policy=policy,
    )


def wait_up(stop: threading.Event) -> None:
    """Wait until all routers and the least number of engines are up, or for `stop`.

    Raises:
        ServerStartError: one does not start; with the messages of its deployment.
    """
    shown = ""
    while not stop.wait(_POLL_S):
        found = serve.status().applications
        for name in (ROUTERS, ENGINES):
            if found[name].status is ApplicationStatus.DEPLOY_FAILED:
                told = [each.message for each in found[name].deployments.values()]
                raise ServerStartError(f"{name}: {found[name].message}\n" + "\n".join(told))
        if all(found[name].status is ApplicationStatus.RUNNING for name in (ROUTERS, ENGINES)):
            return
        states = [each.replica_states for each in found[ENGINES].deployments.values()]
        now = ", ".join(f"{count} {state}" for each in states for state, count in each.items())
        if now != shown:
            logger.info("Engines: %s.", now)
            shown = now


def router_urls() -> list[str]:
    """The URLs at which the routers of a running fleet listen."""
    handle = serve.get_deployment_handle(ROUTERS, ROUTERS)
    return sorted(handle.broadcast("where").results(timeout_s=_ANSWER_S))


def take_down() -> None:
    """End a fleet: the routers first, after their requests; then the engines."""
    for name in (ROUTERS, ENGINES):
        if name in serve.status().applications:
            serve.delete(name, _blocking=False)
        while name in serve.status().applications:
            time.sleep(_POLL_S)


def _target(deployment: Any, *args: object, scales: bool = False) -> serve.RunTarget:
    """An application of one deployment, whose replicas are kept while its arguments stay equal."""
    # Without a given version, Serve replaces all replicas at every change. `scales` is part of it,
    # because replicas that were started without autoscaling never report what that needs.
    deployment._version = hashlib.sha256(msgspec.json.encode((args, scales))).hexdigest()
    return serve.RunTarget(deployment.bind(*args), deployment.name, None)

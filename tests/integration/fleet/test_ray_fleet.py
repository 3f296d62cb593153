"""A fleet of two engines on a real Ray cluster: scaled, replaced and broken under load."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from bench.fleet.faults.asks import Ask, End
from bench.fleet.faults.load import Load
from sglang_prefill_ext.client import PrefillClient
from sglang_prefill_ext.fleet.ray_serve import cluster, deployments
from sglang_prefill_ext.fleet.ray_serve.launch import Launch, Needs, Replicas
from sglang_prefill_ext.fleet.settings import Settings
from sglang_prefill_ext.process.ports import free_port
from tests.forking.launch import ForkedServer
from tests.integration.support.client import Client, score_body, wait_until
from tests.integration.support.fleets import client_at, wait_divided
from tests.integration.support.parity import assert_same
from tests.integration.support.ray_engines import HostedReplica, hosting

pytestmark = [pytest.mark.server, pytest.mark.timeout(1500)]

BODIES = [score_body(20 + n, 40, [30 + n] * 60) for n in range(4)]
NEEDS = Needs(cpus=1.0, gpus=0)
_CHANGED_S = 400.0
"""Limit of a change: a start takes more than a minute if other tests run beside it."""
_LOOK_BACK_S = 11.0
"""For how long loads are averaged; Serve's default is 30 s, and it wants more than 10 s."""

PUSH = "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S"


@dataclass
class OnRay:
    """A fleet on Ray.

    Attributes:
        started: every engine that was ever started, in that order.
        asks: `BODIES`, and what one engine answers.
    """

    client: Client
    launch: Launch
    settings: Settings
    started: list[ForkedServer]
    asks: list[Ask]

    def deploy(self, replicas: str, *flags: str, **autoscaling: float) -> None:
        """Deploy a fleet with this number of engines, and with these flags if given."""
        self.launch = launch = replace(self.launch, flags=flags or self.launch.flags)
        count = Replicas.of(replicas)
        scaling = deployments.autoscaling_of(count, **autoscaling) if autoscaling else None
        if scaling:
            scaling = scaling.model_copy(update={"look_back_period_s": _LOOK_BACK_S})
        deployments.deploy(
            launch, count, NEEDS, self.settings, autoscaling=scaling, engine_class=HostedReplica
        )

    def alive(self) -> list[ForkedServer]:
        return [each for each in self.started if each.running]

    def urls(self) -> set[str]:
        """URLs of the engines that get work."""
        replicas = self.client.status()["replicas"]
        return {each["url"] for each in replicas if each["health"] == "up"}

    def wait_settled(self, count: int, but: tuple[ForkedServer, ...] = ()) -> None:
        """Wait until exactly so many engines run, none of which is out of `but`, and all serve."""

        def settled() -> bool:
            alive = self.alive()
            right = len(alive) == count and not any(each in but for each in alive)
            return right and self.urls() == {each.base_url for each in alive}

        wait_until(settled, _CHANGED_S)


@pytest.fixture(scope="module")
def fleet(
    model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OnRay]:
    launch = Launch(str(model_dir("reranker")), drain_s=30.0)
    settings = Settings(port=free_port(), grpc_port=free_port(), extra_work=10.0)
    os.environ[PUSH] = "0.5"
    with (
        hosting(tmp_path_factory.mktemp("ray")) as started,
        cluster.connected(""),
        cluster.told_to_stop() as stop,
        client_at(f"http://{settings.host}:{settings.port}") as client,
    ):
        on_ray = OnRay(client, launch, settings, started, [])
        on_ray.deploy("2")
        deployments.wait_up(stop)
        on_ray.wait_settled(2)
        with client_at(started[0].base_url) as one:
            on_ray.asks += [
                Ask("/v1/score", json.dumps(body).encode(), one.score(body)) for body in BODIES
            ]
        yield on_ray
        deployments.take_down()
        wait_until(lambda: not on_ray.alive())
    del os.environ[PUSH]


def load_of(fleet: OnRay) -> Load:
    """Clients that leave enough CPU time for engines that start."""
    return Load(fleet.settings.port, fleet.asks, 4, pause_s=0.1)


def assert_all_right(load: Load) -> None:
    why = Counter(each.why for each in load.outcomes if each.end is not End.RIGHT)
    assert not why, why.most_common(3)
    assert not load.late(), load.late()[:3]


def test_answers_are_those_of_one_engine_and_large_requests_are_divided(fleet: OnRay) -> None:
    large = score_body(1, 60, [80 + number % 50 for number in range(200)])
    with client_at(fleet.alive()[0].base_url) as one:
        wanted = one.score(large)
    wait_divided(fleet.client, lambda: assert_same(fleet.client.score(large), wanted))


def test_the_routers_serve_grpc(fleet: OnRay) -> None:
    with PrefillClient(f"grpc://{fleet.settings.host}:{fleet.settings.grpc_port}") as client:
        asked = {name: BODIES[0][name] for name in ("query", "items", "label_token_ids")}
        found = client.score(**asked, apply_softmax=False).scores
    assert_same(found.tolist(), fleet.asks[0].wanted["scores"])


def test_the_routers_show_how_many_engines_run(fleet: OnRay) -> None:
    wait_until(lambda: fleet.client.status()["deployment"] == {"RUNNING": 2})
    shown = 'sglang:prefill_only_fleet_engines{state="RUNNING"} 2.0'
    wait_until(lambda: shown in fleet.client.http.get("/metrics").text)


def test_engines_that_are_replaced_by_others_lose_no_request(fleet: OnRay) -> None:
    """The new ones differ, so that the fleet changes over from one kind to the other."""
    before = tuple(fleet.alive())
    with load_of(fleet) as load:
        load.wait_more(8)
        fleet.deploy("2", "--prefill-only-max-items=500")
        fleet.wait_settled(2, but=before)
        load.wait_more(8)
    assert_all_right(load)


def test_an_engine_that_is_killed_is_replaced_and_loses_no_request(fleet: OnRay) -> None:
    victim = fleet.alive()[0]
    with load_of(fleet) as load:
        load.wait_more(8)
        os.killpg(victim.pids[0], signal.SIGKILL)
        load.wait_more(8)
        fleet.wait_settled(2, but=(victim,))
        load.wait_more(8)
    assert_all_right(load)


def test_a_fleet_gets_smaller_by_hand_and_larger_with_the_outstanding_tokens(fleet: OnRay) -> None:
    with load_of(fleet) as load:
        load.wait_more(8)
        fleet.deploy("1")
        fleet.wait_settled(1)
        load.wait_more(8)
    assert_all_right(load)
    fleet.deploy("1-2", target_tokens=20.0, up_s=0.0, down_s=5.0)
    fleet.wait_settled(1, but=tuple(fleet.alive()))
    with load_of(fleet) as load:
        fleet.wait_settled(2)
    fleet.wait_settled(1)
    assert_all_right(load)

"""What Ray Serve is told to run, without a cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ray import serve

from sglang_prefill_ext.fleet.ray_serve import deployments
from sglang_prefill_ext.fleet.ray_serve.launch import Launch, Needs, Replicas
from sglang_prefill_ext.fleet.settings import Settings

LAUNCH = Launch("model", ("--tp-size", "2"), "key")


@pytest.mark.parametrize(
    ("changed", "kept"),
    [
        (LAUNCH, True),
        (replace(LAUNCH, flags=()), False),
        (replace(LAUNCH, api_key="another key"), False),
    ],
)
def test_engines_are_kept_unless_their_launch_has_changed(
    monkeypatch: pytest.MonkeyPatch, changed: Launch, kept: bool
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(deployments, "node_resources", lambda: [{"CPU": 2.0}])
    monkeypatch.setattr(serve, "start", lambda **_: None)
    monkeypatch.setattr(serve, "run_many", lambda targets, **_: told.append(targets))
    for launch in (LAUNCH, changed):
        deployments.deploy(launch, Replicas(1, 1), Needs(1.0, 0), Settings())
    (_, first), (_, second) = told
    versions = [each.target._bound_deployment.version for each in (first, second)]
    assert (versions[0] == versions[1]) is kept

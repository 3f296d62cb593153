"""Prefix transactions on SGLang's own radix tree: random requests, failures and evictions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.support.own_server import run_script

pytestmark = pytest.mark.timeout(600)

EPISODES = ["1-False", "1-True", "16-False", "16-True"]
"""Page size, and whether forwards run asynchronously."""


@pytest.fixture(scope="module")
def report(
    model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """The report of `radix_runner`, which fails if an invariant does not hold."""
    out = tmp_path_factory.mktemp("radix") / "report.json"
    run_script("radix_runner", out, model_dir("micro"))
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.mark.parametrize("episodes", EPISODES)
def test_every_way_was_gone_many_times_and_nothing_was_lost(
    report: dict[str, Any], episodes: str
) -> None:
    seen = report["episodes"][episodes]
    assert seen["open"] == 0
    for event in ("cached", "commit", "rollback", "ok", "failed", "aborted"):
        assert seen[event] > 300, event
    assert seen["whole"] > 300, "prefixes longer than a forward"
    assert seen["rows_seen"] > 300
    assert seen["row_found"] > 300
    for place in ("launch", "stored", "wait"):
        assert seen[f"failed_{place}"] > 300, place


@pytest.mark.parametrize("page_size", [1, 16])
def test_the_pool_was_full_at_times(report: dict[str, Any], page_size: int) -> None:
    assert report["episodes"][f"{page_size}-False"]["no_room"] > 20


def test_no_more_of_a_prefix_is_looked_up_or_kept_than_can_be_held(report: dict[str, Any]) -> None:
    assert report["held_at_most"] == {
        "capacity": 20,
        "kept": 20,
        "reserved": [True, False],  # the second asks for the whole prefix
        "cached": [0, 20, 20],
        "protected": 0,
    }


def test_every_use_counts_where_the_least_used_is_evicted(report: dict[str, Any]) -> None:
    assert report["left"] == {"lru": 0, "lfu": 20}


def test_a_transaction_that_cannot_begin_locks_nothing(report: dict[str, Any]) -> None:
    assert report["protected"] == 0


def test_only_plain_trees_and_pools_are_used(report: dict[str, Any]) -> None:
    assert report["caches"] == {
        "plain": True,
        "latents": True,
        "adapted_latents": False,
        "disabled": False,
        "hierarchical": False,
        "external": False,
        "other_precision": False,
        "head_by_head": False,
        "drafted_by_a_table": True,
        "drafted_by_a_model": False,
        "kv_canary": False,
        "long_rope": False,
        "window_pool": False,
    }

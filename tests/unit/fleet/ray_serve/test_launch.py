from __future__ import annotations

import pytest

from sglang_prefill_ext.errors import ClusterError, ConfigError
from sglang_prefill_ext.fleet.ray_serve.launch import (
    Launch,
    Needs,
    Replicas,
    needs_of,
    require_room,
    surge_percent,
)


def test_the_key_of_engines_is_not_shown() -> None:
    assert "secret" not in repr(Launch("model", api_key="secret"))


GPU_NODE = {"CPU": 16.0, "GPU": 8.0}
CPU_NODE = {"CPU": 4.0}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("4", (4, 4)), ("1-8", (1, 8)), (" 2 ", (2, 2)), ("0", (0, 0)), ("3-3", (3, 3))],
)
def test_replicas_are_a_number_or_a_range(text: str, wanted: tuple[int, int]) -> None:
    found = Replicas.of(text)
    assert (found.least, found.most) == wanted
    assert found.scales == (wanted[0] != wanted[1])


@pytest.mark.parametrize("text", ["", "four", "-1", "1-", "5-2", "0-3", "1.5", "1-2-3", "٣"])
def test_what_is_no_number_of_engines_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--replicas"):
        Replicas.of(text)


@pytest.mark.parametrize(
    ("ranks", "device", "nodes", "gpus"),
    [
        (2, "", [GPU_NODE], 2),
        (2, "cuda", [CPU_NODE], 2),
        (2, "", [CPU_NODE], 0),
        (2, "cpu", [GPU_NODE], 0),
        (1, "auto", [CPU_NODE, GPU_NODE], 1),
    ],
)
def test_an_engine_needs_a_gpu_a_rank(
    ranks: int, device: str, nodes: list[dict[str, float]], gpus: int
) -> None:
    assert needs_of(ranks, device, 3.0, nodes) == Needs(3.0, gpus)


@pytest.mark.parametrize(
    ("needs", "nodes", "room"),
    [
        (Needs(1, 1), [GPU_NODE], 8),
        (Needs(4, 1), [GPU_NODE], 4),
        (Needs(1, 3), [GPU_NODE, GPU_NODE], 4),  # an engine has one node
        (Needs(1, 1), [CPU_NODE], 0),
        (Needs(1.5, 0), [CPU_NODE], 2),
        (Needs(0, 1), [GPU_NODE], 8),
    ],
)
def test_engines_have_to_fit(needs: Needs, nodes: list[dict[str, float]], room: int) -> None:
    require_room(room, needs, nodes)
    with pytest.raises(ClusterError, match=rf"room for {room} engines .* not for {room + 1}\."):
        require_room(room + 1, needs, nodes)


@pytest.mark.parametrize("replicas", ["1", "3", "8", "99", "1-8", "2-8", "7-100"])
def test_engines_are_replaced_one_after_the_other(replicas: str) -> None:
    asked = Replicas.of(replicas)
    assert surge_percent(asked, Needs(1, 0), [{"CPU": asked.most}]) == 0
    percent = surge_percent(asked, Needs(1, 0), [{"CPU": asked.most + 1}])
    for count in (asked.least, asked.most):
        assert -(-percent * count // 100) == 1


def test_where_there_are_to_be_no_engines_none_is_added() -> None:
    assert surge_percent(Replicas.of("0"), Needs(1, 0), [{"CPU": 9}]) == 0

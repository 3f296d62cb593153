"""What a first sitting on a GPU is to find of the host, for the shapes that are measured there."""

from __future__ import annotations

import pytest

from bench import host_cost
from bench.floor import host_costs
from bench.workloads import Shape

QWEN3_LAYERS = 28


def test_an_eager_forward_has_some_launches_a_layer_and_a_replayed_one_a_few() -> None:
    eager = host_cost.eager(QWEN3_LAYERS)
    assert (eager.launches, round(eager.ms, 1)) == (291, 8.3)
    assert host_cost.eager(QWEN3_LAYERS, cached=True).launches == 292
    stock = host_cost.stock(QWEN3_LAYERS)
    assert (stock.launches, round(stock.ms, 1)) == (141, 2.8)
    assert host_cost.replayed() == host_cost.HostCost(6, 0.6)
    assert host_cost.replayed(cached=True).launches == 7


@pytest.mark.parametrize(
    ("shape", "tokens", "way"),
    [
        ("62+0x1", 62, "packed, graph"),
        ("60+2x50", 160, "packed, graph"),
        ("120+180x10", 1920, "packed, graph"),
        ("50+150x50", 7550, "packed, eager"),
    ],
)
def test_forwards_are_replayed_up_to_the_largest_graph(shape: str, tokens: int, way: str) -> None:
    sizes = Shape.parse(shape)
    assert sizes.packed_tokens == tokens
    taken = [name for name, _, mark in host_costs(QWEN3_LAYERS, sizes) if mark]
    assert taken == [way]

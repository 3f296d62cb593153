"""The estimated host cost, which a first measurement on a GPU is to be compared with."""

from __future__ import annotations

from bench import host_cost

QWEN3_LAYERS = 28


def test_an_eager_forward_has_some_launches_a_layer_and_a_replayed_one_a_few() -> None:
    eager = host_cost.eager(QWEN3_LAYERS)
    assert (eager.launches, round(eager.ms, 1)) == (291, 8.3)
    stock = host_cost.stock(QWEN3_LAYERS)
    assert (stock.launches, round(stock.ms, 1)) == (141, 2.8)
    assert host_cost.replayed() == host_cost.HostCost(6, 0.6)
    assert host_cost.replayed(cached=True).launches == 7

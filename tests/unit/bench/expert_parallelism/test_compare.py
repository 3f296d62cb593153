from __future__ import annotations

import numpy as np
import pytest

from bench.expert_parallelism import cases
from bench.expert_parallelism.cases import (
    MODELS,
    SKEWS,
    expert_parallel,
    replica,
    routing_of,
    shape_of,
)
from bench.expert_parallelism.compare import (
    LOAD,
    LONE_ITEMS,
    Compared,
    Side,
    batch_of,
    compare,
    lone_s,
    ratios,
)
from bench.expert_parallelism.cost import Sends
from sglang_prefill_ext.fleet.planning.cost import RowCosts
from sglang_prefill_ext.sizing.device import DEVICES
from sglang_prefill_ext.sizing.forward import Serving
from tests.unit.bench.expert_parallelism.engines import engine


def compared(
    model: str, gpus: int, sends: Sends = Sends.ONCE, *, balanced: bool = False
) -> Compared:
    serving, shape = Serving(MODELS[model], DEVICES["h100-sxm"]), shape_of(model)
    routing = routing_of("recorded", shape.experts, shape.top_k, 0)
    one = replica(serving, shape, routing)
    together = expert_parallel(serving, shape, routing, gpus, sends, balanced=balanced)
    return compare(one, together, requests=40, seed=0)


def test_rebalancing_helps_divided_experts_and_hidden_exchanges_help_more() -> None:
    fixed, moved = (compared("Qwen3-30B-A3B", 4, balanced=each) for each in (False, True))
    hidden = compared("Qwen3-30B-A3B", 4, Sends.HIDDEN, balanced=True)
    assert fixed.busiest > moved.busiest == hidden.busiest > 1
    found = [each.ratios["requests/s"] for each in (fixed, moved, hidden)]
    assert found == sorted(found, reverse=True)
    assert len(fixed.ratios) == 3 + len(LONE_ITEMS)
    most = [each.figures["requests/s"] for each in (fixed.fleet, fixed.experts)]
    assert fixed.rate == pytest.approx(LOAD * min(most))


def test_a_model_that_fits_no_gpu_is_refused_for_the_fleet() -> None:
    found = compared("GLM-4.5-Air", 8)
    assert found.fleet.why_not == "weights take 213.7 GB of each device, which has room for 64.0"
    assert found.fleet.figures == found.ratios == {}
    assert found.experts.why_not == ""
    assert found.rate == pytest.approx(LOAD * found.experts.figures["requests/s"])
    assert found.experts.figures["P50"] > 0


def test_what_no_side_can_serve_has_no_figures() -> None:
    found = compared("GLM-4.5-Air", 2)
    assert "weights take 1" in found.experts.why_not
    assert found.experts.figures == found.ratios == {}
    assert found.rate == 0


def test_ratios_say_by_how_much_the_fleet_is_better() -> None:
    fleet, experts = (
        Side(1.0, "", {"requests/s": rate, "P50": p50}) for rate, p50 in ((6.0, 10.0), (3.0, 5.0))
    )
    assert ratios(fleet, experts) == {"requests/s": 2.0, "P50": 0.5}


def test_every_part_with_a_row_has_the_prefix() -> None:
    costs = RowCosts.of(60, [100, 200, 300])
    work = batch_of(costs, [np.array([0, 2]), np.array([], dtype=np.int64), np.array([1])])
    assert work.tokens.tolist() == [460, 0, 260]
    assert work.pairs.sum() == costs.pairs.sum() + 2 * costs.prefix_pairs


def test_a_lone_request_is_divided_on_both_sides() -> None:
    one, together = engine(1), engine(4)
    whole_s = lone_s(one, 1, 208)
    for divided_s in (lone_s(one, 4, 208), lone_s(together, 1, 208)):
        assert divided_s == pytest.approx(whole_s / 4, rel=0.1)


@pytest.mark.parametrize("name", SKEWS)
def test_shares_of_each_layer_are_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "FORWARDS", 3)
    monkeypatch.setattr(cases, "LAYERS", 2)
    monkeypatch.setattr(cases, "LEAST_TOKENS", 500)
    shares = routing_of(name, experts=128, top_k=8, seed=99)
    assert len(shares) >= 3
    assert shares.sum(axis=-1) == pytest.approx(np.ones(shares.shape[:-1]))
    if name == "uniform":
        assert shares.max() < 2 / 128
    else:
        assert shares.max() > 2 / 128

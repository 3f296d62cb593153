from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.sizing.device import DEVICES
from sglang_prefill_ext.sizing.forward import Serving, forwards_of
from sglang_prefill_ext.sizing.parallelism import (
    Forecast,
    Load,
    Parallelism,
    forecast,
    forecasts,
    speed,
)
from sglang_prefill_ext.sizing.shape import Shape
from tests.unit.sizing.models import DENSE, SPARSE, decoder, servings, shapes

H100 = DEVICES["h100-sxm"]
LARGE = decoder(80, 8192, 64, 8, 128, 28_672, 128_256)


def _by_name(found: list[Forecast]) -> dict[str, Forecast]:
    return {str(each.parallelism): each for each in found}


@given(servings, shapes)
def test_more_replicas_are_never_slower(serving: Serving, shape: Shape) -> None:
    found = [forecast(serving, Parallelism(count, 1), shape, Load()) for count in range(1, 9)]
    for fewer, more in pairwise(found):
        assert more.idle_s <= fewer.idle_s * (1 + 1e-9)
        assert more.most_requests_per_s > fewer.most_requests_per_s * (1 - 1e-9)
        assert more.parts <= more.parallelism.replicas


@given(servings, shapes, st.sampled_from([1, 2, 4, 6]))
def test_one_replica_has_the_whole_request(serving: Serving, shape: Shape, ranks: int) -> None:
    found = forecast(serving, Parallelism(1, ranks), shape, Load())
    assert found.parts == 1
    assert found.longest == serving.forward(shape, ranks)
    assert found.latency_s == pytest.approx(found.idle_s)
    assert found.most_requests_per_s >= 1 / found.idle_s * (1 - 1e-9)


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("shape", ["60+2x16", "100+100x16", "100+400x16", "20+900x16"])
def test_batches_of_16_are_answered_sooner_by_four_replicas_than_by_four_ranks(
    name: str, shape: str
) -> None:
    """This was measured elsewhere: divided batches of 16 took 12 ms less."""
    found = _by_name(forecasts(Serving(DENSE[name], H100), 4, Shape.parse(shape), Load()))
    assert found["4 x TP1"].idle_s < found["2 x TP2"].idle_s < found["1 x TP4"].idle_s * 1.01
    assert found["1 x TP4"].idle_s - found["4 x TP1"].idle_s > 4e-3


def test_ranks_share_a_long_prefix_and_replicas_repeat_it() -> None:
    found = forecasts(Serving(DENSE["8B"], H100), 4, Shape.parse("4000+50x16"), Load())
    assert [str(each.parallelism) for each in found] == ["1 x TP4", "2 x TP2", "4 x TP1"]


def test_what_does_not_fit_is_last_and_says_why() -> None:
    found = forecasts(Serving(LARGE, H100), 4, Shape.parse("100+400x16"), Load())
    assert [str(each.parallelism) for each in found if not each.why_not] == ["1 x TP4"]
    assert found[-1].why_not.startswith("weights take ")
    found = forecasts(Serving(SPARSE, H100), 6, Shape(1, 1, 1), Load())
    assert "cannot be divided by 3" in _by_name(found)["2 x TP3"].why_not


def test_heads_of_keys_are_divided_or_repeated_evenly() -> None:
    model = decoder(2, 96, 12, 4, 8, 64, 100)
    found = _by_name(forecasts(Serving(model, H100), 12, Shape(1, 1, 1), Load()))
    for name, ranks in (("4 x TP3", 3), ("2 x TP6", 6)):
        assert found[name].why_not == f"12 heads, 4 of K/V, cannot be divided by {ranks}"
    assert {name for name, each in found.items() if not each.why_not} == {
        *("12 x TP1", "6 x TP2", "3 x TP4", "1 x TP12")
    }


def test_heads_of_recurrent_layers_are_divided_too() -> None:
    sizes = {"mamba_n_heads": 6, "mamba_n_groups": 1, "mamba_d_state": 16, "mamba_d_conv": 4}
    sizes |= {"mamba_d_head": 8, "mamba_chunk_size": 64}
    kinds = {"layer_types": ["mamba", "attention"]}
    model = decoder(2, 32, 4, 4, 8, 64, 100, **sizes, **kinds)
    found = _by_name(forecasts(Serving(model, H100), 4, Shape(1, 1, 1), Load()))
    assert found["1 x TP4"].why_not == "6 heads, 1 of K/V, cannot be divided by 4"
    assert not found["2 x TP2"].why_not


@given(servings, shapes, st.integers(2, 64))
def test_clients_wait_for_each_other(serving: Serving, shape: Shape, clients: int) -> None:
    for each in forecasts(serving, 4, shape, Load(clients)):
        assert each.latency_s >= each.idle_s
        assert clients / each.latency_s <= each.most_requests_per_s * 1.01


@given(servings, shapes, st.integers(1, 4))
def test_as_many_clients_as_replicas_share_no_forwards(
    serving: Serving, shape: Shape, replicas: int
) -> None:
    found = forecast(serving, Parallelism(replicas, 1), shape, Load(replicas))
    assert found.latency_s == pytest.approx(serving.forward(shape, 1).seconds)


@given(servings, st.floats(0.05, 0.9))
def test_one_replica_has_the_queue_of_equal_service_times(serving: Serving, used: float) -> None:
    """By Pollaczek and Khinchine, for requests too long to share a forward."""
    shape = Shape.parse("4000+50x150")
    service_s = serving.forward(shape, 1).seconds
    found = forecast(serving, Parallelism(1, 1), shape, Load(rate=used / service_s))
    wait_s = used / (2 * (1 - used)) * service_s
    assert found.latency_s == pytest.approx(service_s + wait_s)


@given(servings, shapes, st.floats(0.05, 0.9))
def test_a_queue_grows_with_the_rate_until_it_never_ends(
    serving: Serving, shape: Shape, share: float
) -> None:
    for each in forecasts(serving, 4, shape, Load(rate=1e-9)):
        assert each.latency_s == pytest.approx(each.idle_s)
        most = each.most_requests_per_s
        light, heavy, too_much = (
            forecast(serving, each.parallelism, shape, Load(rate=rate)).latency_s
            for rate in (share * most, (share + 0.05) * most, most)
        )
        assert each.idle_s <= light * (1 + 1e-9)
        assert light < heavy
        assert math.isinf(too_much)


@given(servings, shapes)
def test_a_router_knows_the_least_forward_and_the_whole_one(serving: Serving, shape: Shape) -> None:
    known = speed(serving, 1, shape)
    assert known.launch_s == serving.forward(Shape(1, 0, 1), 1).seconds
    launches_s = forwards_of(shape.packed_tokens) * known.launch_s
    whole_s = max(serving.forward(shape, 1).seconds, launches_s)
    assert known.seconds(shape.packed_tokens, shape.packed_pairs) == pytest.approx(whole_s, 1e-3)


@pytest.mark.parametrize(
    ("devices", "clients", "rate", "message"),
    [
        (0, 1, None, "--gpus 0: give 1 or more"),
        (1, 0, None, "--clients 0: give 1 or more"),
        (1, 1, 0.0, "--rate 0: give a number"),
        (1, 1, math.nan, "--rate nan: give a number"),
    ],
)
def test_what_is_impossible_is_refused(
    devices: int, clients: int, rate: float | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        forecasts(Serving(SPARSE, H100), devices, Shape(1, 1, 1), Load(clients, rate))

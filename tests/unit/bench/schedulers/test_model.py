from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.schedulers.model import Costs, Machine, bound, gain, limits

TIMES = st.floats(1e-5, 1.0)
NUMBERS = st.integers(1, 8)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    return Machine(draw(st.integers(1, 64)), draw(st.booleans()), draw(st.floats(0.0, 1.0)))


@st.composite
def costs(draw: st.DrawFn) -> Costs:
    return Costs(draw(TIMES), draw(TIMES), draw(TIMES), draw(TIMES))


@pytest.mark.parametrize(
    ("given_", "schedulers", "machine", "name", "rate"),
    [
        # Python is the limit: a second scheduler doubles the rate.
        (Costs(0.004, 0.001), 1, Machine(8), "schedulers", 250.0),
        (Costs(0.004, 0.001), 2, Machine(8), "schedulers", 500.0),
        # The device is: kernels that take turns gain nothing, side by side they do.
        (Costs(0.001, 0.004), 2, Machine(8), "device", 250.0),
        (Costs(0.001, 0.004), 2, Machine(8, overlap=0.5), "device", 1000 / 3),
        (Costs(0.001, 0.004), 4, Machine(8, overlap=1.0), "schedulers", 1000.0),
        # A scheduler that waits for its forward takes both times.
        (Costs(0.001, 0.004), 1, Machine(8, asynchronous=False, overlap=1.0), "schedulers", 200.0),
        # Front end and cores are shared by all.
        (Costs(0.004, 0.001, front_s=0.003), 4, Machine(8), "front end", 1000 / 3),
        (Costs(0.004, 0.001, cpu_s=0.006), 4, Machine(2), "cores", 1000 / 3),
    ],
)
def test_the_busiest_bounds_the_rate(
    given_: Costs, schedulers: int, machine: Machine, name: str, rate: float
) -> None:
    busiest, reached = bound(given_, schedulers, machine)
    assert busiest == name
    assert reached == pytest.approx(rate)


def test_what_costs_nothing_bounds_nothing() -> None:
    free = limits(Costs(0.001, 0.0), 2, Machine(1))
    assert [free[name] for name in ("device", "front end", "cores")] == [math.inf] * 3


@given(costs(), NUMBERS, machines())
def test_more_schedulers_never_harm_and_never_gain_more_than_their_number(
    each: Costs, schedulers: int, machine: Machine
) -> None:
    gained = gain(each, schedulers, machine)
    assert 1 - 1e-9 <= gained <= schedulers + 1e-9
    assert gained <= gain(each, schedulers + 1, machine) + 1e-9


@given(costs(), NUMBERS, machines())
def test_the_rate_is_the_least_of_the_limits(
    each: Costs, schedulers: int, machine: Machine
) -> None:
    name, rate = bound(each, schedulers, machine)
    allowed = limits(each, schedulers, machine)
    assert rate == allowed[name] == min(allowed.values())


@given(costs(), st.integers(2, 8), st.integers(1, 64))
def test_in_turn_a_device_that_is_the_limit_gives_nothing(
    each: Costs, schedulers: int, cores: int
) -> None:
    busy = Costs(each.python_s, each.python_s + each.device_s)
    assert gain(busy, schedulers, Machine(cores)) == pytest.approx(1.0)

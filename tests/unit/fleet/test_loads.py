from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.fleet.health import Health
from sglang_prefill_ext.fleet.loads import Loads
from sglang_prefill_ext.fleet.planning.cost import Computed, Speed
from sglang_prefill_ext.fleet.planning.planner import ReplicaState
from sglang_prefill_ext.fleet.replica_load import ReplicaLoad

SPEED = Speed(0.005, 1 / 25_000)


def loads_of(*replicas: str) -> Loads:
    loads = Loads()
    for replica in replicas:
        loads[replica] = ReplicaLoad(SPEED, 0.0)
    return loads


def state(loads: Loads, replica: str, now_s: float) -> ReplicaState:
    return loads.snapshot(now_s).states[replica]


def outstanding(loads: Loads, replica: str, now_s: float) -> float:
    return state(loads, replica, now_s).outstanding_s


def answer_one_by_one(
    loads: Loads, replica: str, begin_s: float, costs: list[float], took: float
) -> float:
    """Parts that each take `took` of their predicted time; return when the last one has."""
    now_s = begin_s
    for cost_s in costs:
        slowness = state(loads, replica, now_s).speed.token_s * 25_000
        ticket = loads[replica].sent(cost_s * slowness, now_s)
        now_s += cost_s * took
        loads[replica].ended(ticket, now_s, ok=True)
    return now_s


def test_what_is_sent_waits_until_it_is_answered() -> None:
    loads = loads_of("a", "b")
    first = loads["a"].sent(0.2, 0.0)
    loads["a"].sent(0.3, 0.0)
    assert outstanding(loads, "a", 0.0) == pytest.approx(0.5)
    assert outstanding(loads, "b", 0.0) == 0
    assert outstanding(loads, "a", 0.1) == pytest.approx(0.4)  # it is at work
    loads["a"].ended(first, 0.2, ok=True)
    assert outstanding(loads, "a", 0.2) == pytest.approx(0.3)
    assert loads["a"].parts == 1


def test_one_that_is_overdue_is_expected_to_take_as_long_again() -> None:
    loads = loads_of("a")
    loads["a"].sent(0.1, 0.0)
    loads["a"].sent(0.2, 0.0)
    assert outstanding(loads, "a", 0.1) == pytest.approx(0.2)
    assert outstanding(loads, "a", 0.3) == pytest.approx(0.2 + 3 * 0.2)
    loads["a"].reported(4.0, 0.3)
    assert outstanding(loads, "a", 0.3) == pytest.approx(0.2 + 3 * 0.2 + 4.0)


@pytest.mark.parametrize("slower", [0.5, 2.0, 5.0])
def test_a_change_of_speed_counts_within_a_second_of_answers(slower: float) -> None:
    loads = loads_of("a")
    answer_one_by_one(loads, "a", 0.0, [0.05] * 20, took=1.0)
    assert state(loads, "a", 1.0).speed.token_s == pytest.approx(SPEED.token_s)
    end_s = answer_one_by_one(loads, "a", 1.0, [0.05] * int(20 / slower), took=slower)
    assert end_s <= 2.0 + 1e-9
    ratio = state(loads, "a", end_s).speed.token_s / SPEED.token_s
    assert ratio == pytest.approx(slower, rel=0.2)
    loads["a"].reported(1.0, end_s)  # at the speed that it was added with
    for _ in range(2):
        loads["a"].sent(0.1, end_s)
    assert outstanding(loads, "a", end_s) == pytest.approx(0.2 + ratio)


def test_speed_needs_no_order_of_answers() -> None:
    """Three parts that one forward computes are answered at once, the last one first."""
    loads, now_s = loads_of("a"), 0.0
    for _ in range(20):
        ratio = state(loads, "a", now_s).speed.token_s / SPEED.token_s
        tickets = [loads["a"].sent(cost_s * ratio, now_s) for cost_s in (0.01, 0.02, 0.03)]
        now_s += 2 * 0.06
        for ticket in reversed(tickets):
            loads["a"].ended(ticket, now_s, ok=True)
    assert state(loads, "a", now_s).speed.token_s == pytest.approx(2 * SPEED.token_s, rel=0.1)


def test_short_parts_that_overtake_a_long_one_do_not_change_its_speed() -> None:
    """A replica computes a long part in four forwards, and answers a short one in between."""
    loads, now_s = loads_of("a"), 0.0
    for _ in range(20):
        ratio = state(loads, "a", now_s).speed.token_s / SPEED.token_s
        assert 0.8 < ratio < 1.25
        long = loads["a"].sent(1.0 * ratio, now_s)
        now_s += 0.75
        short = loads["a"].sent(0.01 * ratio, now_s)
        now_s += 0.01
        loads["a"].ended(short, now_s, ok=True)
        now_s += 0.25
        loads["a"].ended(long, now_s, ok=True)


def test_a_pause_is_not_a_speed() -> None:
    loads = loads_of("a")
    end_s = answer_one_by_one(loads, "a", 0.0, [0.02] * 50, took=1.0)
    end_s = answer_one_by_one(loads, "a", end_s, [0.02], took=50.0)
    assert state(loads, "a", end_s).speed.token_s < 1.7 * SPEED.token_s
    end_s = answer_one_by_one(loads, "a", end_s, [0.02] * 50, took=1.0)
    assert state(loads, "a", end_s).speed.token_s == pytest.approx(SPEED.token_s, rel=0.1)


def test_work_of_others_counts_and_drains_and_is_not_taken_for_a_lower_speed() -> None:
    loads = loads_of("a")
    loads["a"].reported(1.0, 0.0)
    assert outstanding(loads, "a", 0.0) == pytest.approx(1.0)
    assert outstanding(loads, "a", 0.4) == pytest.approx(0.6)
    assert outstanding(loads, "a", 2.0) == 0
    now_s = 2.0
    for _ in range(40):  # half of what it computes is of others
        loads["a"].reported(0.05, now_s)
        ratio = state(loads, "a", now_s).speed.token_s / SPEED.token_s
        ticket = loads["a"].sent(0.05 * ratio, now_s)
        now_s += 0.1
        loads["a"].ended(ticket, now_s, ok=True)
    assert state(loads, "a", now_s).speed.token_s < 1.5 * SPEED.token_s


def test_small_parts_that_overtake_work_of_others_tell_nothing_of_the_speed() -> None:
    loads, now_s = loads_of("a"), 0.0
    for beat in range(10):
        loads["a"].reported(5.0, now_s)
        while now_s < beat + 1:
            now_s = answer_one_by_one(loads, "a", now_s, [0.01], took=1.0) + 0.01
    assert state(loads, "a", now_s).speed == SPEED
    assert outstanding(loads, "a", now_s) == pytest.approx(4.0, abs=0.1)
    loads["a"].reported(0.0, now_s)
    now_s = answer_one_by_one(loads, "a", now_s, [0.1] * 40, took=2.0)
    assert state(loads, "a", now_s).speed.token_s > 1.5 * SPEED.token_s


@pytest.mark.parametrize("slower", [0.5, 1.0, 3.0])
def test_while_work_of_others_prevails_the_replica_says_how_fast_it_is(slower: float) -> None:
    """Forwards of 1.5 s: their tokens are counted when they begin, their time when they end."""
    loads, forward_s = loads_of("a"), 1.5
    for beat in range(40):
        now_s = float(beat)
        begun, ended = int(now_s / forward_s) + 1, int(now_s / forward_s)
        tokens = round(begun * forward_s / SPEED.token_s / slower)
        loads["a"].computed(Computed(tokens, ended * forward_s), now_s)
        loads["a"].reported(5.0, now_s)
        answer_one_by_one(loads, "a", now_s, [0.01] * 5, took=1.0)  # they overtake
    assert state(loads, "a", 40.0).speed.token_s == pytest.approx(slower * SPEED.token_s, rel=0.3)
    speed = state(loads, "a", 40.0).speed
    loads["a"].computed(Computed(0, 0.0), 40.0)  # it has restarted
    loads["a"].reported(0.0, 40.0)
    loads["a"].computed(Computed(10**6, 9.0), 41.0)  # now it is known from answers
    assert state(loads, "a", 41.0).speed == speed


def test_while_parts_from_here_prevail_only_answers_tell_the_speed() -> None:
    loads = loads_of("a")
    loads["a"].computed(Computed(0, 0.0), 0.0)
    loads["a"].sent(0.9, 0.0)
    loads["a"].reported(0.5, 0.0)
    loads["a"].computed(Computed(100, 9.0), 0.0)
    assert state(loads, "a", 0.0).speed == SPEED


def test_of_replicas_that_are_as_good_each_router_prefers_another() -> None:
    firsts = set()
    for preference in range(64):
        loads = Loads(preference)
        for name in "abcd":
            loads[name] = ReplicaLoad(SPEED, 0.0)
        names = [list(loads.snapshot(now_s).states) for now_s in (0.0, 1.0)]
        assert names[0] == names[1]
        assert sorted(names[0]) == list("abcd")
        assert preference or names[0] == list("abcd")
        firsts.add(names[0][0])
    assert firsts == set("abcd")


def test_silence_is_suspect_within_a_second_and_an_answer_ends_it() -> None:
    loads = loads_of("a", "b")
    ticket = loads["a"].sent(0.1, 0.0)
    assert loads["a"].health(0.4) is Health.UP
    assert loads["a"].health(1.0) is Health.SUSPECT
    assert [each.available for each in loads.snapshot(1.0).states.values()] == [False, True]
    loads["a"].ended(ticket, 1.5, ok=True)
    assert loads["a"].health(1.5) is Health.UP


def test_who_had_nothing_to_do_was_not_silent() -> None:
    loads = loads_of("a")
    loads["a"].sent(0.2, 100.0)
    assert loads["a"].passed_s(100.1) == pytest.approx((0.1, 100.1))
    assert loads["a"].health(100.1) is Health.UP
    assert outstanding(loads, "a", 100.1) == pytest.approx(0.1)


def test_who_answers_is_not_silent_however_much_waits() -> None:
    loads = loads_of("a")
    tickets = [loads["a"].sent(0.2, 0.0) for _ in range(20)]
    for number, ticket in enumerate(tickets):
        now_s = 0.2 * (number + 1)
        assert loads["a"].health(now_s) is Health.UP
        loads["a"].ended(ticket, now_s, ok=True)


def test_work_of_others_excuses_silence() -> None:
    loads = loads_of("a")
    loads["a"].reported(3.0, 0.0)
    loads["a"].sent(0.1, 0.0)
    assert loads["a"].health(3.1) is Health.UP
    assert loads["a"].health(7.0) is Health.SUSPECT


def test_silence_is_noticed_though_work_of_others_stands_still_there() -> None:
    """The engine is paused: it computes nothing, and tells how much waits there."""
    loads = loads_of("a")
    loads["a"].sent(0.1, 0.0)
    for now_s in (0.5, 1.5, 2.5, 3.5):
        loads["a"].reported(1.0, now_s)
    assert loads["a"].health(2.6) is Health.UP
    assert loads["a"].health(3.6) is Health.SUSPECT


def test_where_none_is_up_the_suspect_are_asked() -> None:
    loads = loads_of("a", "b")
    loads["a"].sent(0.1, 0.0)
    loads["b"].draining = True
    assert [each.available for each in loads.snapshot(5.0).states.values()] == [True, False]


def test_failures_keep_work_away_for_longer_and_longer_until_a_probe() -> None:
    loads = loads_of("a")
    now_s = 0.0
    for rest_s in (1.0, 2.0):
        loads["a"].ended(loads["a"].sent(0.1, now_s), now_s, ok=False)
        assert loads["a"].health(now_s + 0.9 * rest_s) is Health.SUSPECT
        now_s += rest_s
        assert loads["a"].health(now_s) is Health.UP
    loads["a"].ended(loads["a"].sent(0.1, now_s), now_s, ok=False)
    assert loads["a"].health(1e6) is Health.DOWN
    assert not loads.snapshot(1e6).states["a"].available
    loads["a"].probed(1e6, ok=False)
    assert loads["a"].health(2e6) is Health.DOWN
    loads["a"].probed(2e6, ok=True)
    assert loads["a"].health(2e6) is Health.UP


def test_one_that_is_down_for_days_comes_back() -> None:
    loads = loads_of("a")
    for second in range(2000):  # more than the exponent of a float
        loads["a"].probed(float(second), ok=False)
        loads["a"].cancelled(loads["a"].sent(0.1, second), second)
        loads["a"].failed(second)
    assert loads["a"].health(2000.0) is Health.DOWN
    loads["a"].probed(2000.0, ok=True)
    assert loads["a"].health(2000.0) is Health.UP


def test_probes_that_fail_now_and_then_do_not_add_up_and_excuse_no_parts() -> None:
    loads = loads_of("a")
    for now_s in (0.0, 100.0, 200.0, 300.0):
        loads["a"].probed(now_s, ok=False)
        loads["a"].probed(now_s + 1, ok=True)
    assert loads["a"].health(400.0) is Health.UP
    for now_s in (400.0, 500.0, 600.0):
        loads["a"].ended(loads["a"].sent(0.1, now_s), now_s, ok=False)
        assert loads["a"].health(now_s) is (Health.DOWN if now_s == 600.0 else Health.SUSPECT)
        if now_s < 600.0:
            loads["a"].probed(now_s + 1, ok=True)


def test_parts_that_are_there_when_a_replica_fails_are_one_failure() -> None:
    loads = loads_of("a")
    together = [loads["a"].sent(0.1, 0.0) for _ in range(5)]
    for ticket in together:
        loads["a"].ended(ticket, 0.2, ok=False)
    assert loads["a"].health(0.2) is Health.SUSPECT
    assert loads["a"].health(1.3) is Health.UP
    for now_s in (2.0, 5.0):
        loads["a"].ended(loads["a"].sent(0.1, now_s), now_s, ok=False)
    assert loads["a"].health(1e6) is Health.DOWN


def test_every_part_that_is_given_up_is_a_failure() -> None:
    loads = loads_of("a")
    for ticket in [loads["a"].sent(0.1, 0.0) for _ in range(3)]:
        assert loads["a"].health(2.0) is Health.SUSPECT
        loads["a"].cancelled(ticket, 2.0)
        loads["a"].failed(2.0)
    assert loads["a"].health(1e6) is Health.DOWN


def test_an_answer_forgives_failures() -> None:
    loads = loads_of("a")
    for now_s in (0.0, 10.0, 20.0, 30.0):
        loads["a"].ended(loads["a"].sent(0.1, now_s), now_s, ok=False)
        loads["a"].ended(loads["a"].sent(0.1, now_s + 5), now_s + 5, ok=True)
    assert loads["a"].health(40.0) is Health.UP


def test_a_restart_clears_everything() -> None:
    loads = loads_of("a")
    answer_one_by_one(loads, "a", 0.0, [0.05] * 10, took=3.0)
    old = loads["a"]
    ticket = old.sent(5.0, 2.0)
    old.reported(9.0, 2.0)
    loads["a"] = ReplicaLoad(SPEED, 3.0)
    old.ended(ticket, 3.5, ok=False)
    assert state(loads, "a", 3.5) == ReplicaState(0.0, SPEED)
    assert loads["a"].health(3.5) is Health.UP
    del loads["a"]
    assert loads.snapshot(4.0).states == {}


def test_a_part_is_late_where_its_replica_is_silent_but_not_because_it_leaves() -> None:
    loads = loads_of("a")
    loads["a"].sent(0.1, 0.0)
    loads["a"].draining = True
    assert not loads["a"].is_late(0.6)
    assert loads["a"].is_late(0.8)


def test_one_that_drains_ends_what_it_has() -> None:
    loads = loads_of("a", "b")
    ticket = loads["a"].sent(0.1, 0.0)
    loads["a"].draining = True
    assert loads["a"].health(0.0) is Health.DRAINING
    assert [each.available for each in loads.snapshot(0.0).states.values()] == [False, True]
    loads["a"].ended(ticket, 0.1, ok=True)
    assert loads["a"].parts == 0
    assert loads["a"].health(0.1) is Health.DRAINING


def test_what_is_cancelled_says_nothing_of_the_replica() -> None:
    loads = loads_of("a")
    loads["a"].cancelled(loads["a"].sent(0.1, 0.0), 5.0)
    assert state(loads, "a", 5.0) == ReplicaState(0.0, SPEED)
    now_s = answer_one_by_one(loads, "a", 5.0, [0.1], took=1.0)
    assert state(loads, "a", now_s).speed.token_s == pytest.approx(SPEED.token_s)
    _, newer = (loads["a"].sent(0.1, now_s) for _ in range(2))
    loads["a"].cancelled(newer, now_s + 5)
    assert loads["a"].health(now_s + 5) is Health.SUSPECT  # the older one is late


@pytest.mark.parametrize("others_s", [0.0, 8.0])
def test_what_waited_behind_a_cancelled_part_is_neither_late_nor_slow(others_s: float) -> None:
    loads = loads_of("a")
    loads["a"].reported(others_s, 100.0)
    long = loads["a"].sent(10.0, 100.0)
    short = [loads["a"].sent(0.1, 101.0) for _ in range(2)]
    loads["a"].cancelled(long, 108.0)
    assert outstanding(loads, "a", 108.0) == pytest.approx(0.2)
    assert loads["a"].health(108.0) is Health.UP
    loads["a"].ended(short[0], 108.1, ok=True)
    assert state(loads, "a", 108.1).speed.token_s == pytest.approx(SPEED.token_s)
    assert loads["a"].health(109.0) is Health.SUSPECT  # the other one is late itself


def test_silence_is_noticed_though_all_parts_are_cancelled_soon() -> None:
    loads, now_s = loads_of("a"), 0.0
    tickets = [loads["a"].sent(0.05, now_s) for _ in range(2)]
    for _ in range(20):
        now_s += 0.1
        tickets.append(loads["a"].sent(0.05, now_s))
        loads["a"].cancelled(tickets.pop(0), now_s)
    assert loads["a"].health(now_s) is Health.SUSPECT


def test_who_has_the_prefix_is_told_to_the_planner() -> None:
    loads = loads_of("a", "b")
    now = loads.snapshot(0.0, with_prefix={loads["b"]})
    assert [each.has_prefix for each in now.states.values()] == [False, True]


def test_utilisation_is_the_busy_share_of_late() -> None:
    loads = loads_of("a", "b")
    assert loads.snapshot(0.0).utilisation == 0
    now_s = 0.0
    for _ in range(100):  # one of two, for three quarters of the time
        ticket = loads["a"].sent(0.075, now_s)
        loads["a"].ended(ticket, now_s + 0.075, ok=True)
        now_s += 0.1
        used = loads.snapshot(now_s).utilisation
    assert used == pytest.approx(0.375, abs=0.01)
    loads["b"].reported(100.0, now_s)
    assert loads.snapshot(now_s + 10).utilisation == pytest.approx(0.5, abs=0.01)
    for _ in range(3):
        loads["a"].probed(now_s + 10, ok=False)
    assert loads.snapshot(now_s + 40).utilisation == pytest.approx(1.0, abs=0.01)  # b is all
    loads.snapshot(now_s + 500)  # until then nobody has asked
    assert loads.snapshot(now_s + 510).utilisation < 0.01


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["sent", "ok", "failed", "cancelled", "reported"]),
            st.sampled_from(["a", "b", "c"]),
            st.floats(0.001, 2),
        ),
        max_size=60,
    )
)
def test_whatever_happens_nothing_is_left_in_the_end(steps: list[tuple[str, str, float]]) -> None:
    loads, now_s = loads_of("a", "b", "c"), 0.0
    open_tickets: list[tuple[ReplicaLoad, int]] = []
    for step, replica, number in steps:
        now_s += number / 3
        if step == "sent":
            load = loads[replica]
            open_tickets.append((load, load.sent(number, now_s)))
        elif step == "reported":
            loads[replica].reported(number, now_s)
        elif open_tickets:
            load, ticket = open_tickets.pop(int(number * 100) % len(open_tickets))
            if step == "cancelled":
                load.cancelled(ticket, now_s)
            else:
                load.ended(ticket, now_s, ok=step == "ok")
        now = loads.snapshot(now_s)
        numbers = [(each.outstanding_s, each.speed.token_s) for each in now.states.values()]
        assert np.isfinite(numbers).all()
        assert (np.array(numbers) >= 0).all()
        assert 0 <= now.utilisation <= 1
    for load, ticket in open_tickets:
        load.cancelled(ticket, now_s)
    final = loads.snapshot(now_s + 1000)
    assert [each.outstanding_s for each in final.states.values()] == [0, 0, 0]
    assert all(each.speed.token_s > 0 for each in final.states.values())

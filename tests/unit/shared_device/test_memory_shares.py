from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.shared_device.memory_shares import (
    FirstScheduler,
    gib,
    kv_share,
    reserve_share,
    token_share,
)

GIB = 1 << 30
FIRST = FirstScheduler(free_before=80 * GIB, room=60 * GIB, static_fraction=0.875)
"""80 GiB, of which SGLang keeps 10 in reserve; the weights take 10."""


def test_what_the_first_scheduler_found() -> None:
    assert FIRST.weights == 10 * GIB
    assert FIRST.reserve == 10 * GIB


@pytest.mark.parametrize(
    ("given", "shared", "further_cost", "share"),
    [
        (False, False, 20, 20),  # (60 - 20) / 2
        (True, False, 10, 25),  # the reserve that the user chose is for both
        (False, True, 10, 25),
        (True, True, 0, 30),
    ],
)
def test_two_schedulers(*, given: bool, shared: bool, further_cost: int, share: int) -> None:
    first = replace(FIRST, fraction_given=given, weights_shared=shared)
    assert first.further_cost == further_cost * GIB
    assert kv_share(first, 2) == share * GIB


def test_one_scheduler_takes_all() -> None:
    assert kv_share(FIRST, 1) == FIRST.room


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        kv_share(FIRST, 4)
    for part in (
        "--prefill-only-schedulers 4: the first scheduler leaves 60.00 GiB",
        "each further one takes 20.00 GiB",
        "--mem-fraction-static (now 0.875)",
        "--weight-cache-mode daemon",
    ):
        assert part in str(caught.value)


@given(
    free=st.integers(GIB, 200 * GIB),
    weight_share=st.floats(0, 0.9),
    fraction=st.floats(0.1, 0.95),
    schedulers=st.integers(1, 8),
    given_=st.booleans(),
    shared=st.booleans(),
)
def test_all_fit_into_what_is_there(
    free: int, weight_share: float, fraction: float, schedulers: int, *, given_: bool, shared: bool
) -> None:
    static = int(free * fraction)
    weights = int(static * weight_share)
    first = FirstScheduler(free, static - weights, fraction, given_, shared)
    try:
        share = kv_share(first, schedulers)
    except ConfigError:
        assert first.room - (schedulers - 1) * first.further_cost < schedulers
        return
    copies = 1 if shared else schedulers
    reserves = 1 if given_ else schedulers
    taken = schedulers * share + copies * first.weights + reserves * first.reserve
    reserve = reserve_share(first, schedulers)
    assert schedulers * reserve <= reserves * first.reserve < schedulers * (reserve + 1)
    assert taken <= free + 2 * schedulers  # whole bytes of weights and reserve
    assert share > 0


@given(st.integers(1, 10**9), st.integers(1, 16))
def test_slots_are_divided(tokens: int, schedulers: int) -> None:
    assume(tokens >= schedulers)
    share = token_share(tokens, schedulers)
    assert share * schedulers <= tokens < (share + 1) * schedulers


def test_too_few_slots() -> None:
    with pytest.raises(ConfigError, match="--max-total-tokens 3 leaves nothing for each of 4"):
        token_share(3, 4)


def test_sizes_for_people() -> None:
    assert gib(3 * GIB // 2) == "1.50 GiB"

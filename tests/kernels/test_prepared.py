from __future__ import annotations

from prefill_kernels.prepared import MOST, PreparedLaunches


def test_a_bounded_number_of_launches_is_kept_with_the_last_one() -> None:
    launches = PreparedLaunches[int]()
    keys = range(2 * MOST + 1)
    for key in keys:
        assert launches.keep(key, -key) == launches.get(key) == -key
        assert sum(launches.get(each) is not None for each in keys) <= MOST

from __future__ import annotations

import numpy as np
import pytest

from bench.simulation.traffic import LENGTHS, SHARED_PREFIXES, CostModel, draw_traffic

COST = CostModel()


def test_a_load_of_one_is_what_single_requests_need() -> None:
    traffic = draw_traffic(1.0, 20_000, COST, seed=0)
    work_ms = COST.forward_ms(traffic.lengths).sum()
    assert work_ms == pytest.approx(traffic.arrival_ms[-1], rel=0.03)
    assert np.bincount(traffic.length_class) == pytest.approx(20_000 / len(LENGTHS), rel=0.05)
    assert (traffic.prefix == -1).all()


def test_shared_prefixes_are_drawn_besides_and_follow_zipf() -> None:
    traffic, plain = (draw_traffic(1.0, 20_000, COST, 0, shared) for shared in (0.5, 0.0))
    assert (traffic.arrival_ms == plain.arrival_ms).all()
    assert (traffic.length_class == plain.length_class).all()
    drawn = traffic.prefix[traffic.prefix >= 0]
    assert len(drawn) == pytest.approx(10_000, rel=0.05)
    counts = np.bincount(drawn, minlength=SHARED_PREFIXES)
    assert len(counts) == SHARED_PREFIXES
    assert counts[0] / counts[9] == pytest.approx(10, rel=0.25)


def test_rows_share_half_of_their_tokens_within_a_length_only() -> None:
    traffic = draw_traffic(1.0, 400, COST, 0, shared=0.8)
    prefixes: dict[tuple[int, int], set[bytes]] = {}
    for number, length in enumerate(traffic.lengths.tolist()):
        rows = traffic.rows(number)
        shares = traffic.prefix[number] >= 0
        assert rows.prefix_len == (length // 2 if shares else 0)
        assert (rows.num_rows, len(rows.tokens)) == (1, length)
        if shares:
            key = int(traffic.length_class[number]), int(traffic.prefix[number])
            prefixes.setdefault(key, set()).add(rows.tokens[: rows.prefix_len].tobytes())
    assert all(len(contents) == 1 for contents in prefixes.values())
    assert len(set.union(*prefixes.values())) == len(prefixes) > SHARED_PREFIXES

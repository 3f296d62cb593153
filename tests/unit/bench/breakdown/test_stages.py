from __future__ import annotations

import timeit

import pytest

from bench.breakdown import stages
from bench.breakdown.stages import packed_stages, stock_stages
from bench.load_generators.wires import Wire, http_bodies
from bench.workloads import Shape, draw_requests

SHAPE = Shape.parse("9+2x5")


@pytest.fixture(autouse=True)
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stage runs once, however short it is."""
    monkeypatch.setattr(stages, "_REPEATS", 1)
    monkeypatch.setattr(timeit.Timer, "autorange", lambda _: (1, 0.0))


@pytest.mark.parametrize("form", [Wire.IDS, Wire.ARRAYS])
def test_every_stage_of_a_request_runs_and_takes_time(form: Wire) -> None:
    (body,) = http_bodies(form, draw_requests(SHAPE, 2000, 1, seed=0), str)
    packed = list(packed_stages(body, 2000))
    assert len({stage.name for stage in packed}) == len(packed) == 13
    assert all(stage.us > 0 for stage in packed)


def test_stages_of_stock_have_the_names_of_ours() -> None:
    (body,) = http_bodies(Wire.IDS, draw_requests(SHAPE, 2000, 1, seed=0), str)
    stock = {stage.name for stage in stock_stages(body, SHAPE.items)}
    assert stock < {stage.name for stage in packed_stages(body, 2000)}

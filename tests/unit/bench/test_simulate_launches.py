from __future__ import annotations

from bench import simulate_launches
from bench.simulate_launches import HOST_MS
from bench.simulation.launches import IN_TIME, WAITS
from tests.unit.bench.commands import Commands


def test_prints_and_records_a_line_per_host_load_and_way(commands: Commands) -> None:
    options = ("--requests", "400", "--load", "0.9", "--name", "launched")
    output = commands.run(simulate_launches.main, *options)
    lines = commands.lines("launched")
    assert [(line["host_ms"], line["load"], line["way"]) for line in lines] == [
        (host_ms, 0.9, way) for host_ms in HOST_MS for way in (WAITS, IN_TIME)
    ]
    for way in (WAITS, IN_TIME):
        assert output.count(f" {way} ") == len(HOST_MS)
    assert {"commit", "machine", "cost", "requests", "seed", "noise"} <= set(lines[0])

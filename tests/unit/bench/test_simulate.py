from __future__ import annotations

from bench import simulate
from bench.simulation.traffic import LENGTHS
from bench.simulation.variants import VARIANTS
from tests.unit.bench.commands import Commands


def test_appends_records(commands: Commands) -> None:
    options = ("--load", "0.5", "--shared", "0.3", "--launch-ms", "2", "--name", "two")
    for _ in range(2):
        output = commands.run(simulate.main, "--requests", "100", *options)
        assert "30% of the requests" in output
        for variant in VARIANTS:
            assert sum(f" {variant.name} " in line for line in output.splitlines()) == 1
    lines = commands.record("two")
    assert len(lines) == 2 * len(VARIANTS)
    first = lines[0]
    assert first["cost"] == {"launch_ms": 2.0, "ms_per_token": 0.0025, "ms_per_row": 0.0}
    assert first["shared"] == 0.3
    assert list(first["class_slowdown"]) == [str(length) for length in LENGTHS]
    assert {"commit", "machine", "seed", "requests", "cache"} <= set(first)

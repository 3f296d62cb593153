from __future__ import annotations

from bench.fleet import __main__ as command
from bench.fleet.policies import POLICIES
from tests.unit.bench.commands import Commands


def test_prints_appends_and_draws(commands: Commands) -> None:
    options = ["--workload", "120+180x10", "--scenario", "half speed", "--replicas", "2"]
    sizes = ["--load", "0.3", "--load", "0.6", "--requests", "20", "--name", "two"]
    output = commands.run(command.main, *options, *sizes)
    assert "120+180x10, half speed, 2 replicas" in output
    for policy in POLICIES:
        assert sum(f"  {policy} " in line for line in output.splitlines()) == 2
    lines = commands.lines("two")
    assert len(lines) == 2 * len(POLICIES)
    assert {"commit", "machine", "seed", "noise", "speed", "p99_ms"} <= set(lines[0])

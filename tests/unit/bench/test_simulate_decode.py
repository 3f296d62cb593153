from __future__ import annotations

from bench import simulate_decode
from bench.simulation.decode_run import REGIMES, VARIANTS
from tests.unit.bench.commands import Commands


def test_prints_and_records_a_line_per_regime_load_and_variant(commands: Commands) -> None:
    options = ("--requests", "100", "--load", "0.9", "--name", "two")
    output = commands.run(simulate_decode.main, *options)
    for variant in VARIANTS:
        assert output.count(f" {variant.name} ") == len(REGIMES)
    lines = commands.record("two")
    assert [(line["regime"], line["load"], line["variant"]) for line in lines] == [
        (regime.name, 0.9, variant.name) for regime in REGIMES for variant in VARIANTS
    ]
    assert {"commit", "machine", "cost", "requests", "seed"} <= set(lines[0])

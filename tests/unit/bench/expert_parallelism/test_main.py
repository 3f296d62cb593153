from __future__ import annotations

from bench.expert_parallelism import __main__ as command
from tests.unit.bench.commands import Commands


def test_prints_appends_and_draws(commands: Commands) -> None:
    sizes = ("--gpus", "8", "--routing", "recorded", "--device", "h100-sxm", "--requests", "20")
    output = commands.run(command.main, *sizes, "--name", "some")
    assert "Qwen3-30B-A3B, 8 x h100-sxm: fleet over experts divided" in output
    assert "fleet: weights take 213.7 GB of each device" in output
    assert "predicted, not measured" in output
    lines = commands.lines("some")
    assert [each["model"] for each in lines] == ["Qwen3-30B-A3B"] * 6 + ["GLM-4.5-Air"] * 6
    assert all(f"{each['compared']['ratios']['P99']:.2f}x" in output for each in lines[:6])
    assert {"commit", "machine", "seed", "noise", "peaks", "row_times"} <= set(lines[0])


def test_experts_that_cannot_be_divided_are_an_error(commands: Commands) -> None:
    assert "give 2, 4, 8 or 16" in commands.run(command.main, "--gpus", "3", status=2)

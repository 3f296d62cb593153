from __future__ import annotations

import numpy as np
import pytest

from bench.moe import __main__ as command
from bench.moe.replay import WAYS, replay
from bench.moe.routing import Forward, recorded
from bench.moe.shapes import SHAPES, Shape
from sglang_prefill_ext.moe.blocks import padded_rows
from tests.unit.bench.commands import Commands

QWEN3 = SHAPES[0]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_over_recorded_routing_the_default_is_near_the_best_block(shape: Shape) -> None:
    outcomes = replay(shape, "recorded", recorded(shape.experts, shape.top_k))
    regret = {way: [each.regret for each in outcomes if each.policy == way] for way in WAYS}
    assert max(regret["auto"]) < 0.03
    assert sum(regret["auto"]) < 0.5 * sum(regret["padding-ratio"])
    assert sum(regret["padding-ratio"]) <= sum(regret["stock"])
    assert sum(regret["auto, device"]) <= sum(regret["auto"])


def test_an_outcome_counts_what_was_chosen() -> None:
    full = Forward(2048, 8, np.full((2, 128), 128))
    for each in replay(QWEN3, "even", [full]):
        # Nothing is known of the only forward; time is that of 1.08 a row where 64 was chosen.
        block = {0.0: 128, 0.08: 64}[round(each.regret, 3)]
        assert each.padded == float(padded_rows(full.counts[0], block) / (2048 * 8)) == 1
        assert each.operations == 6.0 * 2048 * 768 * 2 * 2048 * 8


def test_the_command_writes_what_it_prints(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "decision_us", lambda: 1.5)
    options = ("--tokens", "128", "--forwards", "2", "--name", "some")
    printed = commands.run(command.main, *options)
    assert all(shape.name in printed for shape in SHAPES)
    assert "1.5 us a layer" in printed
    lengths = sum(len({f.tokens for f in recorded(s.experts, s.top_k)}) for s in SHAPES)
    written = commands.record("some")
    assert len(written) == len(WAYS) * (2 * len(SHAPES) + lengths)
    assert {each["decision_us"] for each in written} == {1.5}

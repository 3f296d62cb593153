from __future__ import annotations

import json

import pytest

from bench.decode import beside
from bench.decode.beside import Phase, Throughout, generate_each, run_phase
from bench.decode.stream import Generation, decode_figures
from bench.http_client import LoadError, post_bytes
from bench.load import Measurement, Window, closed_loop, run_loop
from bench.status import PackedCounters
from bench.workloads import generate_body
from tests.unit.bench.stand_in import StandIn

NEW_TOKENS = 4
PROMPTS = [post_bytes("/generate", generate_body([n, 10 * n], NEW_TOKENS)) for n in range(3)]
SCORE = {"query": [1, 2], "items": [[3]], "return_token_logprobs": False}
POOL = [post_bytes("/v1/score", json.dumps(SCORE).encode())]


@pytest.fixture(autouse=True)
def _no_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "WARM_UP_S", 0.0)


def test_every_prompt_is_generated_once_in_order(stand_in: StandIn) -> None:
    phase = run_loop(generate_each(stand_in.port, PROMPTS))
    seen = [Generation.from_pieces(*answer) for answer in phase.answers]
    assert [each.number for each in seen] == [0, 1, 2]
    for each in seen:
        assert each.output_ids == [11 * each.number + n for n in range(NEW_TOKENS)]
        assert each.event_tokens == [1] * NEW_TOKENS


def test_a_phase_lasts_until_a_whole_generation_was_seen_in_it(stand_in: StandIn) -> None:
    phase = run_loop(run_phase(stand_in.port, PROMPTS, 2, 0.0, is_extension=False))
    assert phase.scoring is None
    assert phase.packed is None
    assert phase.packed_share is None
    assert phase.scored_per_s == 0.0
    seen = [Generation.from_pieces(*answer) for answer in phase.answers]
    assert all(len(each.output_ids) == NEW_TOKENS for each in seen)  # also the last ones
    assert decode_figures(seen, phase.begin_s, phase.end_s).tokens_per_s > 0.0


def test_a_phase_lasts_until_a_closed_loop_beside_it_has_had_an_answer(stand_in: StandIn) -> None:
    throughout = Throughout()
    scoring = closed_loop(stand_in.port, POOL, 1, throughout)
    phase = run_loop(
        run_phase(
            *(stand_in.port, PROMPTS, 1, 0.0),
            scoring=scoring,
            throughout=throughout,
            is_extension=True,
        )
    )
    assert phase.scoring is not None
    assert phase.scored_per_s > 0.0
    assert phase.packed is not None


def test_only_scores_within_the_window_count() -> None:
    phase = Phase(10.0, 12.0, scoring=Measurement(ended_s=[9.9, 10.0, 11.0, 12.0]))
    assert phase.scored_per_s == 1.0
    phase.packed = PackedCounters(2, 2, 0.5)
    assert phase.packed_share == 0.25


def test_a_failing_loop_beside_ends_the_phase(stand_in: StandIn) -> None:
    wrong = [post_bytes("/v1/score", b"{}")]
    scoring = closed_loop(stand_in.port, wrong, 2, Window(5.0, 1))
    with pytest.raises(LoadError, match="closed the connection"):
        run_loop(run_phase(stand_in.port, PROMPTS, 2, 30.0, scoring=scoring, is_extension=False))

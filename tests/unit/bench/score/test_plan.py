from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from bench.gate import TOLERANCE
from bench.score.plan import (
    BEST_STOCK_ARGS,
    EXTENSION,
    FEW_REQUESTS,
    MANY_REQUESTS,
    POOL_REQUESTS,
    STOCK,
    Plan,
    alternating,
    make_cases,
)
from bench.workloads import ClosedLoop, Load, OpenLoop, Shape
from sglang_prefill_ext.errors import ConfigError

CONFIG = {
    "num_hidden_layers": 1,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
}
SHAPES = (Shape(3, 2, 4), Shape(5, 0, 1))


def plan(*loads: Load, dtype: str = "float32") -> Plan:
    return Plan(loads, 1.0, 2, ("--on",), dtype)


def bodies(requests: list[bytes]) -> list[dict[str, object]]:
    return [json.loads(request.partition(b"\r\n\r\n")[2]) for request in requests]


def test_closed_loops_come_first_with_the_most_clients_last() -> None:
    share = OpenLoop(0.7, relative=True)
    loads = plan(share, ClosedLoop(8), ClosedLoop(1)).ordered_loads()
    assert loads == [ClosedLoop(1), ClosedLoop(8), share]


def test_a_share_of_stock_needs_a_closed_loop() -> None:
    with pytest.raises(ConfigError, match="needs a closed loop"):
        plan(OpenLoop(0.7, relative=True))
    assert plan(OpenLoop(5.0, relative=False)).ordered_loads()


def test_an_unknown_dtype_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="float32, bfloat16, float16"):
        plan(dtype="fp8")
    assert [plan(dtype=name).dtype for name in TOLERANCE] == list(TOLERANCE)


def test_the_servers_differ_only_in_the_extension_arguments() -> None:
    stock, extension = plan().server_args(STOCK), plan().server_args(EXTENSION)
    assert stock == ["--dtype", "float32", *BEST_STOCK_ARGS]
    assert extension == [*stock, "--on"]


def test_the_prefix_cache_may_stay_on_in_both_servers() -> None:
    both = replace(plan(), radix_cache=True)
    for path in (STOCK, EXTENSION):
        without = plan().server_args(path)
        without.remove("--disable-radix-cache")
        assert both.server_args(path) == without


def test_a_prefix_cache_needs_many_different_requests_unless_they_are_to_repeat() -> None:
    caching = replace(plan(), radix_cache=True)
    assert (plan().pool_requests(), plan().pool_requests(256)) == (POOL_REQUESTS, 256)
    assert caching.pool_requests() == caching.pool_requests(256) == MANY_REQUESTS
    assert replace(caching, repeated=True).pool_requests() == FEW_REQUESTS


def test_both_servers_may_have_further_arguments() -> None:
    both = replace(plan(), args_of_both=("--load-format", "dummy"))
    assert both.server_args(STOCK) == [*plan().server_args(STOCK), "--load-format", "dummy"]
    assert both.server_args(EXTENSION) == [*both.server_args(STOCK), "--on"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    vocabulary = {f"w{n}": n for n in range(100)}
    Tokenizer(models.WordLevel(vocabulary, unk_token="w0")).save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_cases_hold_distinct_timed_and_gate_requests(model: Path) -> None:
    first, second = make_cases(model, SHAPES)
    assert (first.shape, second.shape) == SHAPES
    assert first.operation_ratio > 1.0
    timed, gate = bodies(first.pool), bodies(first.gate)
    assert len({str(body["query"]) for body in [*timed, *gate]}) == len(timed) + len(gate)
    assert not any(body["return_token_logprobs"] for body in timed)
    assert all(body["return_token_logprobs"] for body in gate)


def test_text_is_the_decoded_tokens(model: Path) -> None:
    ids = bodies(make_cases(model, SHAPES)[0].pool)[0]
    text = bodies(make_cases(model, SHAPES, text=True)[0].pool)[0]
    assert isinstance(ids["query"], list)
    assert text["query"] == " ".join(f"w{token}" for token in ids["query"])


def test_every_other_turn_has_the_opposite_order() -> None:
    found = list(alternating("ab", 3))
    assert found == [(0, "a"), (0, "b"), (1, "b"), (1, "a"), (2, "a"), (2, "b")]

"""The status page and Prometheus count exactly what was sent."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sglang_prefill_ext import __version__
from tests.integration.support.client import Client, Json, score_body, wait_until

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

BODY = score_body(911, 40, [3, 7, 1])
PROMPT_TOKENS = 3 * 40 + 11
COMPUTED_TOKENS = 40 + 11

FALLBACKS: dict[str, tuple[Json, str]] = {
    "no items": ({"items": []}, "no_items"),
    "labels twice": ({"label_token_ids": [5, 5]}, "unusual_input"),
    "temperature without softmax": ({"temperature": 2.0}, "unusual_input"),
    "mixed text and ids": ({"query": "text"}, "unusual_input"),
    "longer than the context": ({"query": [7] * 33_000}, "prompt_too_long"),
    "longer than a forward": ({"query": [], "items": [[7] * 16_385]}, "row_over_budget"),
    "pooled": ({"return_pooled_hidden_states": True}, "pooled_hidden_states"),
    "extraction in items before the query": (
        {"score_extraction_token": "a", "item_first": True},
        "unusual_input",
    ),
}


def test_every_field_of_the_status_page_is_documented(client: Client) -> None:
    documented = (Path(__file__).parents[3] / "docs" / "monitoring.md").read_text()
    section = documented.partition("## Status")[2].partition("## Metrics")[0]
    words = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`([^`]+)`", section))))
    status = client.whole_status()
    scheduler, front_end = status["schedulers"][0], status["frontend"]
    shown = {*status, *front_end, *front_end["counters"], *scheduler, *scheduler["known_answers"]}
    shown |= {*scheduler["graphs"], *scheduler["iterations"]}
    assert shown <= words


@pytest.mark.patch("P10", "P20")
def test_what_runs_is_shown(client: Client) -> None:
    status = client.whole_status()
    assert status["enabled"] is True
    assert status["version"] == __version__
    assert status["sglang_version"] == version("sglang")
    assert status["config"]["max_items"] == 400
    assert status["config"]["max_forward_tokens"] == 16_384
    (scheduler,) = status["schedulers"]
    assert (scheduler["dp_rank"], scheduler["packed"], scheduler["declined_reason"]) == (
        0,
        True,
        None,
    )


def test_forwards_are_limited_by_measured_memory(client: Client) -> None:
    budget = client.scheduler()["forward_budget"]
    assert budget["max_tokens"] == 16_384
    # `micro` has 64 hidden numbers of 4 bytes a token; the machine has more than 1 GiB left.
    assert 256 < budget["bytes_per_token"] < 100_000
    assert budget["bytes_per_row"] >= 0
    assert 1 << 30 < budget["max_bytes"] < psutil.virtual_memory().total


def test_the_speed_that_was_measured_at_start_is_shown(client: Client) -> None:
    assert client.scheduler()["calibrated_tokens_per_s"] > 100


def test_time_spent_is_shown(client: Client) -> None:
    before = client.scheduler()["busy_s"]
    answer = client.post("/v1/score", score_body(31, 20, [4]))
    assert answer.status_code == 200
    assert before < client.scheduler()["busy_s"] < before + 60


def test_every_patch_of_a_process_is_applied(client: Client) -> None:
    status = client.whole_status()
    processes = {"frontend": status["frontend"], "scheduler": status["schedulers"][0]}
    for group, process in processes.items():
        patches = [patch for patch in process["patches"] if patch["group"] == group]
        assert patches
        assert all(patch["applied"] and patch["drift"] is False for patch in patches)


@pytest.mark.patch("P11", "P21")
def test_a_packed_request_is_one_request_everywhere(client: Client) -> None:
    with client.counting() as moved:
        client.score(BODY)
    assert +moved == {
        "frontend.requests.packed": 1,
        "frontend.items": 3,
        "frontend.forwards": 1,
        "frontend.tokens_computed": COMPUTED_TOKENS,
        "frontend.tokens_saved": PROMPT_TOKENS - COMPUTED_TOKENS,
        "scheduler.requests.ok": 1,
        "scheduler.rows": 3,
        "scheduler.forwards": 1,
        "scheduler.tokens_computed": COMPUTED_TOKENS,
        "scheduler.tokens_saved": PROMPT_TOKENS - COMPUTED_TOKENS,
    }


def test_computed_and_saved_tokens_add_up_to_the_usage(client: Client) -> None:
    bodies = [
        BODY,
        score_body(2, 0, [5]),
        score_body(3, 300, [60] * 300),
        {"query": "some words ", "items": ["a", "b c", ""], "label_token_ids": [5]},
    ]
    with client.counting() as moved:
        prompt_tokens = sum(client.score(body)["usage"]["prompt_tokens"] for body in bodies)
    computed, saved = moved["frontend.tokens_computed"], moved["frontend.tokens_saved"]
    assert computed + saved == prompt_tokens
    assert moved["frontend.requests.packed"] == len(bodies)
    assert moved["frontend.forwards"] == len(bodies) + 1  # one needs two


@pytest.mark.parametrize("name", FALLBACKS)
def test_every_fall_back_is_counted_by_its_reason(client: Client, name: str) -> None:
    fields, reason = FALLBACKS[name]
    with client.counting() as moved:
        client.post("/v1/score", BODY | fields)
    del moved["frontend.text_batches"]  # of texts that SGLang makes of ids
    assert +moved == {"frontend.requests.stock": 1, f"frontend.fallbacks.{reason}": 1}


@pytest.mark.parametrize("value", ["off", "OFF"])
def test_the_header_opts_out(client: Client, value: str) -> None:
    with client.counting() as moved:
        client.http.post("/v1/score", json=BODY, headers={"X-Prefill-Only": value})
    assert +moved == {"frontend.requests.stock": 1, "frontend.fallbacks.opted_out": 1}


@pytest.mark.parametrize("stock", [False, True])
def test_refusals_are_counted(client: Client, stock: bool) -> None:
    with client.counting() as moved:
        client.post("/v1/score", BODY | {"items": [[5]] * 401}, stock=stock)
    assert +moved == {"frontend.requests.refused": 1}


@pytest.mark.parametrize("header", ["x-prefill-only", "x-prefill-only-timeout-ms"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 1}}),
        ("/v1/completions", {"model": "m", "prompt": [5, 6], "max_tokens": 1}),
        ("/api/generate", {"model": "m", "prompt": "a", "options": {"num_predict": 1}}),
        ("/api/chat", {"model": "m", "messages": [{"role": "user", "content": "a"}]}),
    ],
)
def test_wrong_headers_of_generations_are_counted(
    client: Client, path: str, body: Json, header: str
) -> None:
    with client.counting() as moved:
        assert client.http.post(path, json=body, headers={header: "maybe"}).status_code == 400
    assert +moved == {"frontend.requests.refused": 1}


def test_other_routes_count_nothing(client: Client) -> None:
    with client.counting() as moved:
        client.generate([5, 6], 3)
        client.http.get("/health_generate")
    assert not +moved


def test_prometheus_agrees_with_the_status(client: Client) -> None:
    client.score(BODY)
    client.score(BODY, stock=True)
    text = client.http.get("/metrics").text
    counters = client.status()["frontend"]["counters"]
    by_path = exported(text, "requests", "path")
    assert {path: count for path, count in by_path.items() if count} == counters["requests"]
    assert {"packed", "stock", "failed", "rejected"} < by_path.keys()
    assert exported(text, "fallbacks", "reason") == counters["fallbacks"]
    for name in ("items", "forwards", "tokens_computed", "tokens_saved"):
        assert exported(text, name, "model_name").popitem()[1] == counters[name]


def exported(text: str, name: str, label: str) -> dict[str, Any]:
    """Values of one of our counters by the value of a label."""
    full = f"sglang:prefill_only_{name}_total"
    return {
        sample.labels[label]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == full
    }


def test_pauses_of_every_process_are_exported(client: Client) -> None:
    reports = {each["role"]: each for each in client.collect_garbage("collect")}
    assert set(reports) == {"detokenizer", "scheduler", "tokenizer"}
    counted = {
        sample.labels["role"]: sample.value
        for family in text_string_to_metric_families(client.http.get("/metrics").text)
        for sample in family.samples
        if sample.name == "sglang:prefill_only_gc_pause_seconds_count"
    }
    for role, report in reports.items():
        assert 0 < report["pauses"]["count"] <= counted[role]


def test_pauses_under_load_are_within_the_statistics(client: Client) -> None:
    before = {each["pid"]: each["pauses"] for each in client.collect_garbage("freeze")}
    for seed in range(20):
        client.score(score_body(seed, 20, [3] * 100))
    after = client.collect_garbage("collect")
    assert {each["pid"] for each in after} == before.keys()
    for each in after:
        pauses = each["pauses"]
        assert pauses["count"] > before[each["pid"]]["count"]
        assert 0 < pauses["longest_ms"] <= pauses["total_ms"]
        assert pauses["cpu_longest_ms"] > 0
        for within in (pauses["within_ms"].values(), pauses["cpu_within_ms"].values()):
            assert list(within) == sorted(within)
            assert max(within) <= pauses["count"]
        assert sum(each["objects"]) < each["frozen"]


@pytest.mark.parametrize(
    ("body", "param"), [("[]", "body"), ("{}", "action"), ('{"action": "stop"}', "action")]
)
def test_a_wrong_action_is_refused_by_field(client: Client, body: str, param: str) -> None:
    answer = client.http.post("/prefill_only/gc", content=body)
    assert (answer.status_code, answer.json()["param"]) == (400, param)
    assert param in answer.json()["message"]


def test_the_start_is_shown_by_stage(client: Client) -> None:
    # SGLang's warm-up may end a little after the server answers.
    wait_until(lambda: "freeze" in client.status()["frontend"]["startup"])
    status = client.whole_status()
    stages = {"frontend": status["frontend"]["startup"]}
    stages["scheduler"] = status["schedulers"][0]["startup"]
    measured = ["experts", "kernels", "calibration", "compilation", "known_answers"]
    names = ["imports", "patches", "model", *measured, "total"]
    assert list(stages["scheduler"]) == names
    front = ["imports", "patches", "tokenizer", "warm_up", "freeze", "total"]
    assert list(stages["frontend"]) == front
    for each in stages.values():
        assert each["total"] == pytest.approx(sum(list(each.values())[:-1]), abs=0.01)
    # The scheduler had measured and checked its kernels when the server said that it is ready.
    assert stages["scheduler"]["total"] < stages["frontend"]["total"]

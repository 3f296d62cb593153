"""Every supported model family, in process: packed, stock prefill and Hugging Face."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.gate import TOLERANCE as TOLERANCES
from bench.gate import largest_logprob_difference
from sglang_prefill_ext.modelmaker.multimodal import MULTIMODAL
from sglang_prefill_ext.modelmaker.presets import ENCODERS, FAMILIES
from tests.integration.support.own_server import run_script
from tests.integration.support.parity import TOLERANCE

pytestmark = pytest.mark.timeout(1500)

MONITORING = Path(__file__).parents[3] / "docs" / "monitoring.md"
OTHER_CLASSES = (
    "nemotron-omni-NemotronH_Nano_Omni_Reasoning_V3",
    "nemotron-omni-NemotronH_Nano_VL_V2",
)
"""Presets with another class of SGLang, of which Transformers has none."""

PACKED = (*FAMILIES, *MULTIMODAL, *OTHER_CLASSES)
BARE = ("bare-mistral", "bare-qwen3", "bare-smollm3")
VISION = ("qwen2-vl", "qwen2.5-vl", "qwen3-vl", "qwen3.5-vl")
EMBEDDERS = ("qwen2", "qwen3", "llama", "mistral", *VISION, *BARE)
CLASSIFIERS = ("classifier", "classifier-qwen2", "classifier-llama", "classifier-gemma2")
REWARDS = ("reward-qwen2", "reward-qwen3")
ENCODED = tuple(ENCODERS)
HALF_PRECISION = ("qwen3", "classifier")
"""Models that also run in bfloat16: one for tokens and embeddings, and one for classes."""
HALF_TOLERANCE = TOLERANCES["bfloat16"]
ROUNDING = 2**-7
"""Largest step between neighbours in bfloat16, of a number's size."""
NO_STOCK = ("gemma2", "llama4", "gpt-oss", "granite-swa", "granite-moe-swa", "exaone4", "mimo-v2")
"""Without a GPU, SGLang ignores the soft cap of the first and the chunks of the second, and cannot
run the others."""

NO_OVERRIDES = ("gemma4-e",)
"""Layers of this model look the tokens up, too."""

RECURRENT = ("qwen3.5", "lfm2", "kimi-linear")
"""A model of each kind of recurrent layers that graphs replay."""

WAYS = ("one_forward", "small_budget", "overridden")
each_family = pytest.mark.parametrize("family", PACKED)
each_comparison = pytest.mark.parametrize(
    ("family", "reference", "way"),
    [
        (family, reference, way)
        for family in PACKED
        for reference in ("hugging_face", "stock")
        for way in WAYS
        if not (reference == "stock" and family in NO_STOCK)
        if not (way == "overridden" and family in NO_OVERRIDES)
    ]
    + [(family, "hugging_face", "graphs") for family in RECURRENT],
)
each_way = pytest.mark.parametrize("way", WAYS)


@pytest.fixture(scope="module")
def reports(
    model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What `family_runner` measured, by preset."""
    out = tmp_path_factory.mktemp("families")
    presets = (*FAMILIES, *MULTIMODAL, *BARE, *CLASSIFIERS, *REWARDS, *ENCODED)
    models: list[str | Path] = [model_dir(preset) for preset in presets]
    for each in OTHER_CLASSES:
        preset, _, other = each.rpartition("-")
        models.append(f"{other}:{model_dir(preset)}")
    half = [f"bfloat16:{model_dir(preset)}" for preset in HALF_PRECISION]
    # Qwen2-MoE scales its shared expert by a Triton kernel, whatever the device.
    run_script("family_runner", out, *models, *half, env={"TRITON_INTERPRET": "1"})
    return {path.stem: json.loads(path.read_text()) for path in out.glob("*.json")}


@pytest.mark.patch("P75")
@each_comparison
def test_same_numbers(reports: dict[str, Any], family: str, reference: str, way: str) -> None:
    report = reports[family]
    work = zip(report["packed"][way], report[reference], report["row_labels"], strict=True)
    for packed, wanted, row_labels in work:
        assert len(packed) == sum(row_labels)
        # Of log-probs below -10 the difference is relative: SGLang and Hugging Face themselves are
        # 1.2e-5 apart where they reach -23.
        values = np.array(wanted), np.array(packed)
        assert largest_logprob_difference(*values, TOLERANCE) <= TOLERANCE
        np.testing.assert_allclose(np.exp(packed), np.exp(wanted), rtol=0, atol=TOLERANCE)
        assert np.array_equal(
            _first_label_ranks(packed, row_labels), _first_label_ranks(wanted, row_labels)
        )


@each_way
def test_half_precision_costs_no_more_than_in_stock(reports: dict[str, Any], way: str) -> None:
    report = reports["qwen3-bfloat16"]
    packed, stock, exact = (
        np.concatenate([np.array(values) for values in each])
        for each in (report["packed"][way], report["stock"], report["hugging_face"])
    )
    np.testing.assert_allclose(np.exp(packed), np.exp(stock), rtol=0, atol=HALF_TOLERANCE)
    np.testing.assert_array_less(np.abs(packed - stock), _half_tolerance(stock))
    assert np.abs(packed - exact).mean() <= 1.1 * np.abs(stock - exact).mean()


@each_way
def test_half_precision_changes_no_rank_of_what_is_further_apart(
    reports: dict[str, Any], way: str
) -> None:
    report, compared = reports["qwen3-bfloat16"], 0
    work = zip(report["packed"][way], report["stock"], report["row_labels"], strict=True)
    for packed, stock, row_labels in work:
        first = np.cumsum([0, *row_labels[:-1]])
        found, wanted = np.array(packed)[first], np.array(stock)[first]
        gaps = wanted[:, None] - wanted[None, :]
        apart = np.abs(gaps) > _half_tolerance(np.minimum(wanted[:, None], wanted[None, :]))
        compared += int(apart.sum())
        assert np.array_equal(np.sign(found[:, None] - found[None, :])[apart], np.sign(gaps)[apart])
    assert compared > 100


@pytest.mark.parametrize("model", HALF_PRECISION)
@each_way
def test_half_precision_vectors(reports: dict[str, Any], model: str, way: str) -> None:
    vectors = reports[f"{model}-bfloat16"]["vectors"]
    found, wanted = np.array(vectors[way]), np.array(vectors["hugging_face"])
    # A head's bias is the same for every prompt, as above; embeddings have unit length.
    found, wanted = found - found[0], wanted - wanted[0]
    scale = np.ptp(wanted, axis=0).max() if model in CLASSIFIERS else 1.0
    np.testing.assert_allclose(found, wanted, rtol=0, atol=HALF_TOLERANCE * scale)


@each_family
def test_answers_differ_enough_to_show_a_mistake(reports: dict[str, Any], family: str) -> None:
    report = reports[family]
    spreads = [
        np.ptp(np.reshape(values, (len(labels), -1)), axis=0).min()
        for values, labels in zip(report["hugging_face"], report["row_labels"], strict=True)
        if len(labels) > 1 and len(set(labels)) == 1
    ]
    assert spreads
    assert min(spreads) > 1000 * TOLERANCE


@pytest.mark.parametrize("family", RECURRENT)
def test_graphs_of_recurrent_layers_are_replayed(reports: dict[str, Any], family: str) -> None:
    graphs = reports[family]["graphs"]
    assert graphs["obstacle"] == ""
    assert graphs["forwards"] == {"graph": len(reports[family]["hugging_face"])}


@each_family
def test_the_budget_divides_requests(reports: dict[str, Any], family: str) -> None:
    forwards = reports[family]["forwards"]
    assert set(forwards["one_forward"]) == {1}
    assert max(forwards["small_budget"]) >= 4  # prefix chunks, then rows on a held prefix


@each_family
def test_nothing_of_stock_is_touched(reports: dict[str, Any], family: str) -> None:
    assert reports[family]["untouched"] == {
        "kv_slots": True,
        "request_rows": True,
        "kv_buffers": True,
    }


@pytest.mark.parametrize("family", PACKED + BARE + CLASSIFIERS + REWARDS + ENCODED)
def test_the_model_is_packed(reports: dict[str, Any], family: str) -> None:
    assert reports[family]["declined"] is None


def test_without_a_gpu_sglang_leaves_out_the_soft_cap_of_attention(reports: dict[str, Any]) -> None:
    report = reports["gemma2"]
    work = zip(report["stock"], report["hugging_face"], strict=True)
    apart = [
        largest_logprob_difference(np.array(stock), np.array(hf), TOLERANCE) for stock, hf in work
    ]
    assert min(apart) > 100 * TOLERANCE


@each_family
def test_embeddings_in_place_of_tokens_are_refused_where_layers_look_tokens_up(
    reports: dict[str, Any], family: str
) -> None:
    assert ("look the tokens up" in reports[family]["refused"]) == (family in NO_OVERRIDES)


@pytest.mark.parametrize("family", EMBEDDERS)
@each_way
def test_same_embeddings(reports: dict[str, Any], family: str, way: str) -> None:
    vectors = reports[family]["vectors"]
    np.testing.assert_allclose(vectors[way], vectors["hugging_face"], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("family", CLASSIFIERS)
@each_way
def test_same_classes(reports: dict[str, Any], family: str, way: str) -> None:
    vectors = reports[family]["vectors"]
    found, wanted = np.array(vectors[way]), np.array(vectors["hugging_face"])
    assert found.shape == wanted.shape == (len(found), 3)
    assert np.ptp(wanted, axis=0).min() > 1000 * TOLERANCE
    # Some heads of SGLang have a bias, which checkpoints of the architecture lack: whatever it is,
    # it is the same for every prompt.
    np.testing.assert_allclose(found - found[0], wanted - wanted[0], rtol=0, atol=2 * TOLERANCE)


@pytest.mark.parametrize("family", REWARDS)
@each_way
def test_same_rewards(reports: dict[str, Any], family: str, way: str) -> None:
    vectors = reports[family]["vectors"]
    found, wanted = np.array(vectors[way]), np.array(vectors["hugging_face"])
    assert wanted.shape == (len(wanted), 1)
    _assert_same_vectors(found, wanted)


@pytest.mark.parametrize("family", ENCODED)
@pytest.mark.parametrize("way", ["one_forward", "small_budget", "graphs", "stock"])
def test_same_vectors_of_encoders(reports: dict[str, Any], family: str, way: str) -> None:
    vectors = reports[family]["vectors"]
    found, wanted = np.array(vectors[way]), np.array(vectors["hugging_face"])
    _assert_same_vectors(found, wanted)


@pytest.mark.parametrize("family", ENCODED)
def test_graphs_of_encoders_are_replayed(reports: dict[str, Any], family: str) -> None:
    graphs = reports[family]["graphs"]
    assert graphs["obstacle"] == ""
    assert graphs["forwards"] == {"graph": 3}


@pytest.mark.parametrize("family", ENCODED)
def test_the_budget_divides_prompts_of_encoders(reports: dict[str, Any], family: str) -> None:
    assert max(reports[family]["forwards"]) > 1


@pytest.mark.parametrize("family", ENCODED)
def test_encoders_take_no_embeddings_in_place_of_tokens(
    reports: dict[str, Any], family: str
) -> None:
    assert "not possible with an encoder" in reports[family]["refused"]


def test_other_models_layers_and_servers_are_declined(reports: dict[str, Any]) -> None:
    documented = MONITORING.read_text()
    declined = reports["qwen3"]["declined_if"]
    assert {"model_architecture", "logit_soft_cap", "long_rope"} <= set(declined)
    for expected, reason in declined.items():
        assert reason == expected
        assert f"`{reason}`" in documented


def _assert_same_vectors(found: NDArray[np.float64], wanted: NDArray[np.float64]) -> None:
    assert found.shape == wanted.shape
    assert np.ptp(wanted, axis=0).min() > 1000 * TOLERANCE
    np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE)


def _first_label_ranks(values: list[float], row_labels: list[int]) -> NDArray[np.intp]:
    """Order of the rows by their first label."""
    starts = np.cumsum([0, *row_labels[:-1]])
    return np.argsort(np.asarray(values)[starts])


def _half_tolerance(logprobs: NDArray[np.float64]) -> NDArray[np.float64]:
    """The tolerance of bfloat16, or the step between stored logits of this size if larger."""
    return np.maximum(HALF_TOLERANCE, ROUNDING * np.abs(logprobs))

"""SGLang's scheduler with the packed path on a pretended H100: which ways it takes there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.support.adapters import make_adapter
from tests.integration.support.own_server import run_python

pytestmark = pytest.mark.timeout(900)

STOCK_GRAPHS = (
    *("--cuda-graph-backend-prefill", "breakable"),
    *("--cuda-graph-max-bs-prefill", "16"),
)
"""SGLang's own graphs of prefills, which are its default."""

FLAGS: dict[str, tuple[str, ...]] = {
    "tiny": STOCK_GRAPHS,
    "tiny fa3": ("--prefill-only-attention", "merge-fa3"),
    "qwen3 torch": ("--prefill-only-attention", "torch"),
    "tiny adapter": ("--load-format", "auto", "--enable-lora"),
    "tiny fp8": ("--quantization", "fp8", "--kv-cache-dtype", "fp8_e4m3"),
    "gemma2": (),
    "olmoe": ("--prefill-only-moe-source", "device"),
    "deepseek-v2": (),
    "llama4": (),
    "gpt-oss": (),
    "qwen3-next": (),
    "qwen3.5": (),
    "qwen3.5 eager": ("--prefill-only-cuda-graphs", "0"),
    "lfm2": (),
    "granite4": (),
    "falcon-h1": (),  # its head is float32
    "bert-reranker": ("--is-embedding",),
    "embedding-gemma": STOCK_GRAPHS,
}
"""By name, which begins with the preset."""
REPLAYED = {"graph", "too_large", "overrides", "adapter"}
"""How forwards run if all that may be replayed as a graph are."""
PREFIXES_KEPT = {"graph", "held_prefix", "kept_prefix", "overrides"}
"""How they run if graphs do not use the prefix cache."""
USES = dict.fromkeys(FLAGS, REPLAYED) | {
    "qwen3 torch": {"no_graphs"},
    "tiny fp8": PREFIXES_KEPT,
    "olmoe": REPLAYED | {"counted"},
    "deepseek-v2": PREFIXES_KEPT | {"counted"},
    "llama4": PREFIXES_KEPT | {"too_large", "counted"},
    "gpt-oss": PREFIXES_KEPT,
    "qwen3-next": PREFIXES_KEPT | {"counted"},
    "qwen3.5": PREFIXES_KEPT,
    "qwen3.5 eager": set(),
    "lfm2": PREFIXES_KEPT,
    "granite4": set(),
    "falcon-h1": set(),
}
"""How forwards may run; of models without graphs nothing is counted."""
WAITS: dict[str, set[str]] = {name: set() for name in FLAGS} | {
    "qwen3 torch": {"a copy to the GPU in __init__"},  # of the plans of its calls
    "tiny adapter": {"a copy to the GPU in apply_to"},  # SGLang's, of the batch of adapters
}
"""Where the host waits for the GPU while it serves."""
KERNELS = dict.fromkeys(FLAGS, "attention_kernel") | {
    "tiny fa3": "fwd",
    "qwen3 torch": "store_cache",
    "tiny adapter": "_chunked_lora_expand_kernel",
    "tiny fp8": "fp8_scaled_mm",
    "olmoe": "block_choice_kernel",
    "gpt-oss": "_p_matmul",  # of OpenAI
    "qwen3-next": "causal_conv_kernel",
    "qwen3.5": "causal_conv_kernel",
    "qwen3.5 eager": "causal_conv_kernel",
    "lfm2": "causal_conv_kernel",
    "granite4": "_chunk_scan_fwd_kernel",
    "falcon-h1": "_chunk_scan_fwd_kernel",
}
"""A kernel that the way of the case launches."""
COMPILED: dict[str, set[str]] = {name: set() for name in FLAGS} | {
    "tiny adapter": {"sglang.kernels.ops.lora.dense"},
    # By the length of a forward; one that OpenAI's package makes at run time has no package.
    "gpt-oss": {
        "",
        "triton_kernels.topk_details",
        "triton_kernels.tensor_details",
        "triton_kernels.tensor_details.bitmatrix_details",
    },
}
"""Packages whose kernels are compiled while requests are served."""
each_case = pytest.mark.parametrize("name", FLAGS)


@pytest.fixture(scope="module")
def reports(
    model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("gpu")
    adapter = make_adapter("adapter", model_dir("tiny"), directory, rank=8)
    flags = FLAGS | {
        "tiny adapter": (*FLAGS["tiny adapter"], "--lora-paths", adapter.named_path),
    }
    paths = {name: str(model_dir(name.split()[0])) for name in flags}
    paths["gpt-oss"] = str(_in_half_precision(model_dir("gpt-oss"), directory / "gpt-oss"))
    cases = {name: ["--model-path", paths[name], *more] for name, more in flags.items()}
    asked, told = directory / "cases.json", directory / "reports"
    asked.write_text(json.dumps(cases))
    told.mkdir()
    # Not forked from a process that has imported SGLang: what it imports depends on the device.
    run = run_python("-m", "tests.integration.programs.gpu_runner", asked, told)
    assert run.returncode == 0, run.stderr[-4000:]
    return {path.stem: json.loads(path.read_text()) for path in told.glob("*.json")}


def _in_half_precision(model: Path, directory: Path) -> Path:
    """A copy of a model whose configuration names bfloat16; gpt-oss has no other dtype."""
    shutil.copytree(model, directory)
    config = directory / "config.json"
    config.write_text(config.read_text().replace('"dtype": "float32"', '"dtype": "bfloat16"'))
    return directory


@each_case
def test_every_request_is_packed_and_answered(reports: dict[str, Any], name: str) -> None:
    report = reports[name]
    assert report["declined"] is None
    assert len(report["answers"]) == report["requests"]
    assert set(report["answers"].values()) == {"ok"}


@each_case
def test_forwards_are_replayed_where_they_can_be(reports: dict[str, Any], name: str) -> None:
    forwards = reports[name]["forwards"]
    assert set(forwards) <= USES[name]
    assert ("graph" in forwards) == ("graph" in USES[name])


@each_case
def test_the_host_waits_for_nothing(reports: dict[str, Any], name: str) -> None:
    assert set(reports[name]["waits"]) == WAITS[name]


@each_case
def test_no_forward_leaves_its_tensors_to_the_garbage_collector(
    reports: dict[str, Any], name: str
) -> None:
    """It seldom runs, and memory of the GPU that is exhausted does not make it run."""
    assert reports[name]["left"] == 0


@each_case
def test_the_kernels_of_the_way_are_launched(reports: dict[str, Any], name: str) -> None:
    launched = reports[name]["launched"]
    assert KERNELS[name] in launched
    assert ("attention_kernel" in launched) == (name != "qwen3 torch")


@each_case
def test_no_kernels_of_other_packages_are_compiled_while_serving(
    reports: dict[str, Any], name: str
) -> None:
    packages = {each.rpartition(".")[0] for each in reports[name]["compiled"]}
    assert packages == COMPILED[name]


@pytest.mark.parametrize("name", ["olmoe", "deepseek-v2", "llama4", "qwen3-next"])
def test_the_first_forward_with_experts_is_counted(reports: dict[str, Any], name: str) -> None:
    assert reports[name]["forwards"]["counted"] == 1


def test_blocks_of_experts_are_chosen(reports: dict[str, Any]) -> None:
    assert reports["tiny"]["experts"] == "no experts"
    assert reports["olmoe"]["experts"] == ""


def test_prefixes_are_cached(reports: dict[str, Any]) -> None:
    shared = {name for name, report in reports.items() if report["cached_tokens"]}
    alone = {
        "tiny fp8",
        "llama4",
        "gpt-oss",
        "qwen3-next",
        "qwen3.5",
        "qwen3.5 eager",
        "lfm2",
        "granite4",
        "falcon-h1",
        "bert-reranker",
        "embedding-gemma",
    }
    assert shared == set(FLAGS) - alone

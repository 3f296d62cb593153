"""The benchmarks of kernels, on small problems: all ways that can be run here compute the same.

Nothing is timed. Libraries that need a GPU are left out by name, as the benchmarks do it.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch

from bench.kernels import bench_causal_conv as causal_conv
from bench.kernels import bench_expert_blocks as expert_blocks
from bench.kernels import bench_label_readout as label_readout
from bench.kernels import bench_merge_state as merge_state
from bench.kernels import bench_shared_prefix_attention as attention
from bench.kernels import harness
from bench.kernels.harness import Case, Way
from bench.moe.shapes import Shape
from tests.kernels.experts.test_expert_blocks import aligned

GPU_ONLY = ("merge-fa3", "merge-flashinfer", "page aliasing, FlashAttention-3")


@pytest.fixture(autouse=True)
def _without_a_clock(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    """Replace times and limits by made-up numbers, and let torch compile nothing."""
    del device
    monkeypatch.setattr(harness, "copy_bandwidth", lambda: 1000.0)
    monkeypatch.setattr(harness, "matrix_rate", lambda dtype: 1.0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "none")
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    for module in (attention, causal_conv, merge_state, label_readout, expert_blocks):
        # bfloat16 is wrong in the interpreter.
        monkeypatch.setattr(module, "DTYPE", torch.float32)


def lines_of(case: Case, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    """What is printed for a case whose ways all take a millisecond, by way."""
    assert harness._measured(case, lambda way: 1.0)
    printed = capsys.readouterr()
    told = [line for line in printed.err.splitlines() if "without " in line]
    assert all(any(f"without {name}: " in line for name in GPU_ONLY) for line in told), told
    records = [json.loads(line) for line in printed.out.splitlines()]
    assert all(next(iter(record)) == "ratio" for record in records)
    return {record["way"]: record for record in records}


def test_attention(device: torch.device, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        # SGLang on a machine without a GPU, and FlexAttention that is not compiled.
        warnings.simplefilter("ignore")
        for case in attention.make_cases(11, 3, 4, 2, device):
            records = lines_of(case, capsys)
            assert {"fused", "merge", "FlexAttention"} < set(records)
            assert "page aliasing, SGLang Triton" in records
            assert {record["ratio"] for record in records.values()} == {1.0}


def test_merge_state(device: torch.device, capsys: pytest.CaptureFixture[str]) -> None:
    records = lines_of(merge_state.make_case(5, 2, device), capsys)
    assert set(records) == {"merge_state", "torch", "torch.compile"}


def test_label_readout(device: torch.device, capsys: pytest.CaptureFixture[str]) -> None:
    records = lines_of(label_readout.make_case(3, 32, 100, device), capsys)
    assert set(records) == {"label_readout", "torch"}
    moved = (3 * 32 + 100 * 32) * 4
    assert records["torch"]["gb_per_s"] == round(moved / 1e6, 1)


def test_causal_conv(device: torch.device, capsys: pytest.CaptureFixture[str]) -> None:
    records = lines_of(causal_conv.make_case(5, 3, 2, 16, 24, device), capsys)
    assert set(records) == {"causal_conv", "torch", "SGLang, twice"}


def test_expert_blocks(
    device: torch.device, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if device.type == "cpu":  # what SGLang has for CUDA only, and what it asks of a device
        monkeypatch.setattr(expert_blocks.fused_moe, "moe_align_block_size", aligned)
        name = "get_device_name"
        monkeypatch.setattr(expert_blocks.fused_moe_triton_config, name, lambda: "none")
    shape = Shape("small", 4, 2, 64, 32, {})
    weights = expert_blocks.weights_of(shape, device)
    with expert_blocks.hooked():
        case = expert_blocks.make_case(shape, "skewed", np.array([9, 1, 0, 2]), weights)
        records = lines_of(case, capsys)
    # Without a tuned table there are two blocks.
    assert list(records) == ["block 64", "block 16", "device, 64 or 16"]
    assert {record["kernel"] for record in records.values()} == {"expert_blocks, small, skewed"}
    assert {record["busiest"] for record in records.values()} == {9}


def way_of(value: float) -> Callable[[], Way]:
    return lambda: lambda: (torch.tensor([value]),)


def case_of(**baselines: Callable[[], Way]) -> Case:
    ours = {"ours": way_of(1.0)}
    return Case("kernel", {}, torch.float32, 1000, 1000, 0.1, ours, baselines)


def test_the_ratio_is_to_the_fastest_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([2.0, 6.0, 3.0])
    case = case_of(slow=way_of(1.0), fast=way_of(1.05))
    assert harness._measured(case, lambda way: next(times))
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(r["way"], r["ratio"]) for r in records] == [("ours", 1.5), ("slow", 0.5), ("fast", 1)]


def test_a_wrong_result_prints_no_line_and_ends_the_run_at_last(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "median_ms", lambda way: 1.0)
    with pytest.raises(SystemExit, match="1 of the cases"):
        harness.measure([case_of(other=way_of(1.2)), case_of(other=way_of(1.0))])
    printed = capsys.readouterr()
    assert "other differs" in printed.err
    assert len(printed.out.splitlines()) == 2


def test_a_baseline_that_fails_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> Way:
        raise OSError("no such symbol")

    assert harness._measured(case_of(library=fail), lambda way: 1.0)
    printed = capsys.readouterr()
    assert "without library: OSError: no such symbol" in printed.err
    assert json.loads(printed.out)["ratio"] is None


def test_ours_must_run() -> None:
    case = case_of()
    failing = Case(**{**vars(case), "ours": {"ours": lambda: 1 / 0}})  # type: ignore[dict-item]
    with pytest.raises(ZeroDivisionError):
        harness._measured(failing, lambda way: 1.0)

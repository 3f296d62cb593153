"""Alignment of DeepGEMM's products through SGLang's own functions, without a GPU."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.environ import envs
from sglang.srt.layers import deep_gemm_wrapper
from sglang.srt.layers.deep_gemm_wrapper import compile_utils, entrypoint
from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE
from sglang.srt.layers.moe.utils import MoeRunnerBackend
from torch import nn

from sglang_prefill_ext.border.model import alignment
from sglang_prefill_ext.border.model.alignment import AlignmentHook, with_chosen_alignment
from sglang_prefill_ext.config import MoePolicy, PrefillOnlyConfig
from sglang_prefill_ext.moe.policy import LARGE, SMALL

FEW, MANY = (1024 * 8, 128), (16_384 * 8, 128)
"""Rows of all experts, and experts, where 64 and where 128 is chosen."""
CUDA = torch.device("cuda")
KINDS = compile_utils.DeepGemmKernelType
CONTIGUOUS = (KINDS.GROUPED_GEMM_NT_BF16_CONTIG, 1536, 2048, 128)


class DeepGemm(SimpleNamespace):
    """Stands for the library on Hopper: its setting, which needs no device, and its advice."""

    def __init__(self) -> None:
        self.alignment = LARGE
        super().__init__()

    def get_mk_alignment_for_contiguous_layout(self) -> int:
        return self.alignment

    def set_mk_alignment_for_contiguous_layout(self, alignment: int) -> None:
        self.alignment = alignment

    def get_theoretical_mk_alignment_for_contiguous_layout(self, rows: int) -> int:
        return LARGE


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> DeepGemm:
    library = DeepGemm()
    monkeypatch.setattr(entrypoint, "deep_gemm", library, raising=False)
    monkeypatch.setattr(deep_gemm_wrapper, "ENABLE_JIT_DEEPGEMM", True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(compile_utils, "_INITIALIZATION_DICT", {})
    return library


@pytest.fixture(autouse=True)
def hook(monkeypatch: pytest.MonkeyPatch) -> AlignmentHook:
    hook = AlignmentHook()
    monkeypatch.setattr(alignment, "ALIGNMENTS", hook)
    return hook


asked = partial(with_chosen_alignment, entrypoint.get_contiguous_layout_alignment)


def test_until_it_serves_nothing_is_changed(hook: AlignmentHook) -> None:
    assert (asked(*FEW), asked(*MANY)) == (LARGE, LARGE)
    assert hook.as_dict() == {"reason": "no experts", "chosen": {}}


def test_it_chooses_by_the_rows_of_an_expert_and_counts(hook: AlignmentHook) -> None:
    hook.serve(MoePolicy.AUTO)
    assert [asked(*FEW), asked(*MANY), asked(*FEW)] == [SMALL, LARGE, SMALL]
    assert hook.as_dict() == {"reason": "", "chosen": {"64": 2, "128": 1}}


def test_another_alignment_of_the_device_stays(
    hook: AlignmentHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook.serve(MoePolicy.AUTO)
    monkeypatch.setattr(entrypoint.deep_gemm, "alignment", 96)
    assert (asked(*FEW), asked(*MANY)) == (96, 96)


class Layer(FusedMoE):  # type: ignore[misc]
    """Stands for experts of DeepGEMM: their product asks for the alignment, and shows it."""

    def __init__(self, backend: MoeRunnerBackend, wrong: int | None = 0) -> None:
        nn.Module.__init__(self)
        self.quant_method = self
        self.moe_runner_config = SimpleNamespace(apply_router_weight_on_input=False)
        self.num_experts = self.num_local_experts = 8
        self.top_k, self.hidden_size, self.params_dtype = 2, 4, torch.float32
        self.backend, self.wrong = backend, wrong
        self.asked: list[tuple[int, str]] = []

    def get_moe_runner_backend(self, layer: object) -> MoeRunnerBackend:
        return self.backend

    def apply(self, layer: object, dispatch_output: Any) -> Any:
        if self.wrong is None:
            raise RuntimeError("out of memory")
        ids = dispatch_output.topk_output.topk_ids
        alignment = asked(ids.numel(), self.num_local_experts)
        self.asked.append((alignment, envs.SGLANG_DEEPGEMM_STANDARD_LAYOUT.get()))
        hidden = dispatch_output.hidden_states + (alignment == self.wrong)
        dispatch_output.hidden_states.untyped_storage().resize_(0)  # as SGLang's in place
        return SimpleNamespace(hidden_states=hidden)


@pytest.fixture
def without_device(monkeypatch: pytest.MonkeyPatch) -> None:
    work = alignment.expert_work
    monkeypatch.setattr(
        alignment, "expert_work", lambda *args: work(*args[:-1], torch.device("cpu"))
    )


def set_up(layer: Layer | None, policy: MoePolicy = MoePolicy.PADDING_RATIO) -> dict[str, Any]:
    model = nn.Sequential() if layer is None else nn.Sequential(layer)
    alignment.set_up_alignments(model, CUDA, PrefillOnlyConfig(moe=policy))
    return alignment.ALIGNMENTS.as_dict()


@pytest.mark.usefixtures("without_device")
def test_a_start_compares_and_compiles_both(
    library: DeepGemm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiled: list[tuple[object, int]] = []
    masked = (KINDS.GROUPED_GEMM_NT_BF16_MASKED, *CONTIGUOUS[1:])
    shapes = {CONTIGUOUS: True, masked: True}
    monkeypatch.setenv("DG_JIT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compile_utils, "_INITIALIZATION_DICT", shapes)
    monkeypatch.setattr(
        compile_utils,
        "_compile_deep_gemm_one_type_all",
        lambda *shape: compiled.append((shape, library.alignment)),
    )
    layer = Layer(MoeRunnerBackend.DEEP_GEMM)
    assert set_up(layer) == {"reason": "", "chosen": {}}
    assert layer.asked == [(LARGE, "compact"), (SMALL, "compact")]
    assert compiled == [((*CONTIGUOUS, compile_utils._BUILTIN_M_LIST), SMALL)]
    assert library.alignment == LARGE
    assert envs.SGLANG_DEEPGEMM_STANDARD_LAYOUT.get() == "auto"
    assert asked(*FEW) == SMALL


@pytest.mark.usefixtures("without_device")
def test_a_kernel_that_gives_other_numbers_is_not_used() -> None:
    assert "differ" in set_up(Layer(MoeRunnerBackend.DEEP_GEMM, wrong=SMALL))["reason"]
    assert asked(*FEW) == LARGE


@pytest.mark.usefixtures("without_device")
@pytest.mark.parametrize("layout", [None, "masked"])
def test_a_kernel_that_fails_is_not_used(
    layout: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if layout is not None:
        monkeypatch.setenv("SGLANG_DEEPGEMM_STANDARD_LAYOUT", layout)
    told = set_up(Layer(MoeRunnerBackend.DEEP_GEMM, wrong=None))
    assert told["reason"] == "RuntimeError: out of memory"
    assert asked(*FEW) == LARGE
    assert os.environ.get("SGLANG_DEEPGEMM_STANDARD_LAYOUT") == layout


@pytest.mark.parametrize(
    ("layer", "policy", "reason"),
    [
        (None, MoePolicy.LEAST_TIME, "DeepGEMM computes no experts"),
        (Layer(MoeRunnerBackend.TRITON), MoePolicy.LEAST_TIME, "DeepGEMM computes no experts"),
        (
            Layer(MoeRunnerBackend.DEEP_GEMM),
            MoePolicy.AUTO,
            "auto leaves it to SGLang, until it is measured on a GPU",
        ),
        (Layer(MoeRunnerBackend.DEEP_GEMM), MoePolicy.STOCK, "asked for"),
    ],
    ids=["dense", "another kernel", "auto", "stock"],
)
def test_why_sglangs_choice_stays(layer: Layer | None, policy: MoePolicy, reason: str) -> None:
    assert set_up(layer, policy) == {"reason": reason, "chosen": {}}
    assert layer is None or layer.asked == []
    assert asked(*FEW) == LARGE


def test_other_devices_and_failures_leave_it_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer(MoeRunnerBackend.DEEP_GEMM)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 0))
    assert set_up(layer)["reason"] == "SGLang chooses it by the rows on this device"
    monkeypatch.delattr(torch.cuda, "get_device_capability")
    assert set_up(layer)["reason"].startswith("AttributeError: ")
    monkeypatch.setattr(deep_gemm_wrapper, "ENABLE_JIT_DEEPGEMM", False)
    assert set_up(layer)["reason"] == "SGLang runs without DeepGEMM here"
    assert asked(*FEW) == LARGE

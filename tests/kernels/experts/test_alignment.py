"""SGLang's own layout for DeepGEMM fits its products at both alignments.

DeepGEMM needs a GPU. Its product is written out here as its kernels do it: a block of as many rows
as the alignment says belongs to the expert of its first row, and is left out where that is -1. So
is the kernel that copies rows to their places, which Triton's interpreter cannot run.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Self

import pytest
import torch
from sglang.kernels.ops.moe import ep_moe_kernels
from sglang.srt.environ import envs
from sglang.srt.layers import deep_gemm_wrapper
from sglang.srt.layers.deep_gemm_wrapper import entrypoint
from sglang.srt.layers.moe.moe_runner import deep_gemm
from sglang.srt.layers.moe.moe_runner.base import MoeRunnerConfig
from sglang.srt.layers.moe.token_dispatcher.standard import StandardDispatchOutput
from sglang.srt.layers.moe.topk import StandardTopKOutput
from torch import Tensor

from sglang_prefill_ext.border.model import alignment as hooks
from sglang_prefill_ext.border.model.alignment import AlignmentHook, with_chosen_alignment
from sglang_prefill_ext.config import MoePolicy
from sglang_prefill_ext.moe.policy import LARGE, SMALL

HIDDEN, EXPERTS, TOP_K = 128, 6, 2


def product(rows: Tensor, weights: Tensor, expert_of: Tensor, alignment: int) -> Tensor:
    out = torch.full((len(rows), weights.shape[1]), torch.nan, dtype=rows.dtype, device=rows.device)
    for start in range(0, len(rows), alignment):
        expert = int(expert_of[start])
        if expert >= 0:
            block = slice(start, start + alignment)
            assert set(expert_of[block].tolist()) <= {expert, -1}
            out[block] = (rows[block].float() @ weights[expert].float().T).to(rows.dtype)
    return out


class Copies:
    """Stands for `_fwd_kernel_ep_scatter_2`: the next place of an expert gets the next row."""

    def __getitem__(self, grid: object) -> Self:
        return self

    def __call__(self, *args: Any, **sizes: Any) -> None:
        _, next_place, hidden, _, _, _, _, _, ids, _, _, out, _, _, _, _, _, places, *_ = args
        for token, experts in enumerate(ids.tolist()):
            for column, expert in enumerate(experts):
                out[next_place[expert]] = hidden[token]
                places[token, column] = next_place[expert]
                next_place[expert] += 1


@pytest.mark.parametrize("tokens", [1, 40, 300])
@pytest.mark.parametrize("alignment", [LARGE, SMALL])
def test_the_layout_fits_the_products(
    tokens: int, alignment: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = SimpleNamespace(get_mk_alignment_for_contiguous_layout=lambda: LARGE)
    monkeypatch.setattr(entrypoint, "deep_gemm", library, raising=False)
    stock = entrypoint.get_contiguous_layout_alignment
    monkeypatch.setattr(
        deep_gemm_wrapper,
        "get_contiguous_layout_alignment",
        lambda rows, experts: with_chosen_alignment(stock, rows, experts),
    )
    chooser = AlignmentHook()
    chooser.serve(MoePolicy.PADDING_RATIO)
    monkeypatch.setattr(hooks, "ALIGNMENTS", chooser)
    monkeypatch.setattr(hooks, "alignment_for", lambda policy, rows, experts: alignment)
    monkeypatch.setattr(ep_moe_kernels, "_fwd_kernel_ep_scatter_2", Copies())
    plain = SimpleNamespace(capture=SimpleNamespace(disable_dispose_tensor=True))
    monkeypatch.setattr(deep_gemm, "get_flags", lambda: plain)
    generator = torch.Generator().manual_seed(tokens)
    hidden = torch.randn(tokens, HIDDEN, generator=generator).bfloat16().to(device)
    weights = torch.randn(EXPERTS, HIDDEN, HIDDEN, generator=generator).bfloat16().to(device)
    # The last expert gets no row, the first the most.
    odds = torch.tensor([9.0, 4, 2, 1, 1, 0]).expand(tokens, -1)
    ids = torch.multinomial(odds, TOP_K, generator=generator).int().to(device)
    shares = torch.rand(tokens, TOP_K, generator=generator).to(device)
    config = MoeRunnerConfig(
        num_experts=EXPERTS, num_local_experts=EXPERTS, top_k=TOP_K, inplace=False
    )
    info = deep_gemm.DeepGemmMoeQuantInfo(weights, weights, use_fp8=False)
    routed = StandardTopKOutput(shares, ids, torch.empty(0))
    state: dict[str, Any] = {}
    with envs.SGLANG_DEEPGEMM_STANDARD_LAYOUT.override("compact"):
        laid_out = deep_gemm.pre_permute_standard_to_deep_gemm(
            StandardDispatchOutput(hidden, None, routed), info, config, state
        )
    assert state["contiguous_layout_alignment"] == alignment
    out = product(laid_out.hidden_states, weights, laid_out.m_indices, alignment)
    places = state["src2dst"].long()
    found = (out[places].float() * shares[..., None]).sum(1)
    each = torch.einsum("th,tkoh->tko", hidden.float(), weights[ids.long()].float()).bfloat16()
    torch.testing.assert_close(found, (each.float() * shares[..., None]).sum(1), rtol=0, atol=0.2)
    assert len(places.unique()) == tokens * TOP_K

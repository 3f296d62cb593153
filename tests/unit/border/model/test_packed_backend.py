"""What SGLang's layers and adapters get in a packed forward."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.models import utils

from sglang_prefill_ext.attention.inputs import LayerInputs
from sglang_prefill_ext.border.model.packed_backend import PackedAttentionBackend, packed_batch_of
from sglang_prefill_ext.errors import PackedForwardError

STOCK = SimpleNamespace(token_to_kv_pool=None, req_to_token_pool=None)
LAYER: dict[str, Any] = {"tp_q_head_num": 1, "tp_k_head_num": 1, "tp_v_head_num": 1}
LAYER |= {
    "qk_head_dim": 2,
    "v_head_dim": 2,
    "scaling": 1.0,
    "logit_cap": 0.0,
    "sliding_window_size": -1,
}
TOKENS = torch.arange(10.0).view(5, 2)


@pytest.mark.parametrize(
    ("layer_id", "read_at", "left"), [(3, [1, 4], [1, 4]), (2, [1, 4], None), (3, None, None)]
)
def test_only_read_positions_leave_the_last_layer_and_its_adapters_know(
    layer_id: int, read_at: list[int] | None, left: list[int] | None
) -> None:
    told: list[bool] = []
    written: list[Any] = []
    batch = SimpleNamespace(
        read_at=None if read_at is None else torch.tensor(read_at),
        residual_stream=SimpleNamespace(residual=TOKENS, write=written.append),
        attend=lambda layer, inputs: inputs.q,
        adapt=lambda *, shortened: told.append(shortened),
        latents=None,
    )
    layer: Any = SimpleNamespace(layer_id=layer_id, **LAYER)
    backend = PackedAttentionBackend(STOCK, last_layer=3)
    out = backend.forward_extend(TOKENS, TOKENS, TOKENS, layer, batch)
    assert out.tolist() == (TOKENS if left is None else TOKENS[left]).tolist()
    assert told == ([] if left is None else [True])
    assert [each.tolist() for each in written] == [out.tolist() for _ in told]


def test_a_cap_of_scores_that_is_switched_off_is_none_for_the_kernels() -> None:
    """A Gemma 2 whose configuration has null for the cap; the kernels compare it with 0."""
    layer: Any = SimpleNamespace(layer_id=0, **LAYER | {"logit_cap": None})
    seen: list[LayerInputs] = []

    def attend(_layer: int, inputs: LayerInputs) -> torch.Tensor:
        seen.append(inputs)
        return inputs.q

    backend = PackedAttentionBackend(STOCK, last_layer=3)
    batch: Any = SimpleNamespace(read_at=None, attend=attend, latents=None)
    backend.forward_extend(TOKENS, TOKENS, TOKENS, layer, batch)
    assert [each.soft_cap for each in seen] == [0.0]


def test_layers_with_the_number_of_an_earlier_one_use_its_keys_and_values() -> None:
    layer: Any = SimpleNamespace(layer_id=0, **LAYER)
    seen: list[torch.Tensor] = []

    def attend(_layer: int, inputs: LayerInputs) -> torch.Tensor:
        seen.extend((inputs.k[:, 0], inputs.v[:, 0]))
        return inputs.q

    backend = PackedAttentionBackend(STOCK, last_layer=None, shared={0})
    batch: Any = SimpleNamespace(read_at=None, attend=attend, latents=None, shared={})
    backend.forward_extend(TOKENS, TOKENS, 2 * TOKENS, layer, batch)
    backend.forward_extend(TOKENS, None, None, layer, batch)
    assert [each.tolist() for each in seen] == 2 * [TOKENS.tolist(), (2 * TOKENS).tolist()]


def test_each_layer_has_its_own_chunks() -> None:
    seen: list[int] = []

    def attend(_layer: int, inputs: LayerInputs) -> torch.Tensor:
        seen.append(inputs.chunk)
        return inputs.q

    backend = PackedAttentionBackend(STOCK, last_layer=3, chunks={1: 8})
    batch: Any = SimpleNamespace(read_at=None, attend=attend, latents=None)
    for number in range(2):
        layer: Any = SimpleNamespace(layer_id=number, **LAYER)
        backend.forward_extend(TOKENS, TOKENS, TOKENS, layer, batch)
    assert seen == [0, 8]


def test_what_packed_attention_does_not_know_is_an_error() -> None:
    layer: Any = SimpleNamespace(layer_id=0, **LAYER)
    backend, batch = PackedAttentionBackend(STOCK, last_layer=3), SimpleNamespace(read_at=None)
    with pytest.raises(PackedForwardError, match="knows no k_rope, which layer 0"):
        backend.forward_extend(TOKENS, TOKENS, TOKENS, layer, batch, k_rope=TOKENS)


def test_no_model_stores_keys_while_it_rotates(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA, some models would otherwise write the keys of every packed token to slot 0."""
    pool = SimpleNamespace(dtype=torch.bfloat16)
    monkeypatch.setattr(utils, "_is_cuda", True)
    monkeypatch.setattr(utils, "get_token_to_kv_pool", lambda: pool)
    monkeypatch.setattr(utils, "is_cp_active", lambda _batch: False)
    stock = SimpleNamespace(dcp_kv_mask=None)
    assert utils.enable_fused_set_kv_buffer(stock) is True
    tokens = torch.arange(2)
    assert not utils.enable_fused_set_kv_buffer(
        packed_batch_of(tokens, tokens, [2], torch.zeros_like(tokens))
    )

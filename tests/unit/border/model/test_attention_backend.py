"""What goes on behind the attention of the last layer."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sglang_prefill_ext.border.model.attention_backend import PackedAttentionBackend
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
    told: list[int] = []
    written: list[Any] = []
    batch = SimpleNamespace(
        read_at=None if read_at is None else torch.tensor(read_at),
        residual_stream=SimpleNamespace(residual=TOKENS, write=written.append),
        attend=lambda layer, inputs: inputs.q,
        adapt=told.append,
    )
    layer: Any = SimpleNamespace(layer_id=layer_id, **LAYER)
    backend = PackedAttentionBackend(STOCK, last_layer=3)
    out = backend.forward_extend(TOKENS, TOKENS, TOKENS, layer, batch)
    assert out.tolist() == (TOKENS if left is None else TOKENS[left]).tolist()
    assert told == ([] if left is None else [len(left)])
    assert [each.tolist() for each in written] == [out.tolist() for _ in told]


@pytest.mark.parametrize(
    ("options", "sinks", "expected"),
    [
        ({}, None, (0.0, None)),
        ({"sliding_window_size": None}, None, (0.0, None)),
        ({"logit_cap": 50.0, "sliding_window_size": 31}, None, (50.0, 31)),
        ({"sliding_window_size": 127}, torch.ones(1), (0.0, 127)),
    ],
)
def test_what_a_layer_has_beside_plain_attention_reaches_it(
    options: dict[str, Any], sinks: Any, expected: tuple[float, int | None]
) -> None:
    seen: list[Any] = []

    def attend(_layer: int, inputs: Any) -> Any:
        seen.append(inputs.variant)
        return inputs.q

    layer: Any = SimpleNamespace(layer_id=0, **(LAYER | options))
    batch: Any = SimpleNamespace(read_at=None, attend=attend)
    backend = PackedAttentionBackend(STOCK, last_layer=3)
    known = {} if sinks is None else {"sinks": sinks}
    backend.forward_extend(TOKENS, TOKENS, TOKENS, layer, batch, **known)
    (variant,) = seen
    assert (variant.soft_cap, variant.window) == expected
    assert variant.sinks is sinks
    with pytest.raises(PackedForwardError, match="knows no k_rope, which layer 0"):
        backend.forward_extend(TOKENS, TOKENS, TOKENS, layer, batch, k_rope=TOKENS)

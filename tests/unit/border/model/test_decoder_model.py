from __future__ import annotations

from types import SimpleNamespace

import torch

from sglang_prefill_ext.border.model import decoder_model


def test_forwards_share_what_nobody_writes_to() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    tiny = SimpleNamespace(_some_zeros=none, device=none.device)
    first = decoder_model.SglangModel._zeros(tiny, 5)
    shorter, longer = (
        decoder_model.SglangModel._zeros(tiny, 3),
        decoder_model.SglangModel._zeros(tiny, 9),
    )
    assert [each.tolist() for each in (first, shorter, longer)] == [[0] * 5, [0] * 3, [0] * 9]
    assert shorter.data_ptr() == first.data_ptr()

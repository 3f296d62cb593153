"""Capped logits without a GPU."""

from __future__ import annotations

import torch

from sglang_prefill_ext.border.cpu.cpu_platform import capped_on_host


def test_logits_are_capped_in_place() -> None:
    capped = torch.tensor([[-1e4, -3.0, 0.0, 3.0, 1e4]])
    capped_on_host(print, capped, 30.0)
    expected = 30 * torch.tensor([[-1.0, -0.1, 0.0, 0.1, 1.0]]).tanh()
    expected[0, [0, -1]] = torch.tensor([-30.0, 30.0])
    torch.testing.assert_close(capped, expected)

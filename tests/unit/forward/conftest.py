"""A device whose numbers cannot be read, so that code that would wait for a GPU fails."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from sglang_prefill_ext.forward import upload as upload_module
from sglang_prefill_ext.forward.upload import in_one_buffer

UNREADABLE = torch.device("meta")


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The device; uploads to it need no pinned memory, which only a GPU has."""

    def unpinned(arrays: Sequence[np.ndarray], *, pinned: bool) -> Tensor:
        assert pinned
        return in_one_buffer(arrays, pinned=False)

    monkeypatch.setattr(upload_module, "in_one_buffer", unpinned)
    return UNREADABLE

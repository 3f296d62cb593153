"""A default of stock SGLang on CUDA, on which one of our defaults depends."""

from __future__ import annotations

import pytest
from sglang.srt import utils
from sglang.srt.model_executor.cuda_graph_config import Backend, default_prefill_backend

from sglang_prefill_ext.config import PrefillOnlyConfig


@pytest.mark.parametrize(
    ("is_cuda", "backend"), [(True, Backend.BREAKABLE), (False, Backend.DISABLED)]
)
def test_prefills_are_graphs_by_default_where_packed_forwards_are(
    monkeypatch: pytest.MonkeyPatch, is_cuda: bool, backend: str
) -> None:
    """Were stock's prefills eager again, or all of one graph, ours would be compared with others:
    look at `PrefillOnlyConfig.graph_tokens` and docs/gpu.md then."""
    monkeypatch.setattr(utils, "is_cuda", lambda: is_cuda)
    assert default_prefill_backend() == backend
    ours = PrefillOnlyConfig().graph_tokens(on_cuda=is_cuda, ranks=1)
    assert (ours > 0) == (backend != Backend.DISABLED)

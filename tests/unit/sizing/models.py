"""Shapes of existing models, and requests for them."""

from __future__ import annotations

from hypothesis import strategies as st

from sglang_prefill_ext.sizing.device import DEVICES
from sglang_prefill_ext.sizing.forward import Serving
from sglang_prefill_ext.sizing.layer_sizes import Experts
from sglang_prefill_ext.sizing.model import ModelShape
from sglang_prefill_ext.sizing.shape import Shape

DENSE = {
    "0.6B": ModelShape(28, 1024, 16, 8, 128, 3072, 151_936, tied=True),
    "1.7B": ModelShape(28, 2048, 16, 8, 128, 6144, 151_936, tied=True),
    "4B": ModelShape(36, 2560, 32, 8, 128, 9728, 151_936, tied=True),
    "8B": ModelShape(36, 4096, 32, 8, 128, 12_288, 151_936),
}
"""Qwen3's."""

SPARSE = ModelShape(48, 2048, 32, 4, 128, 6144, 151_936, Experts(128, 8, 768))
"""Qwen3-30B-A3B."""

servings = st.builds(
    Serving, st.sampled_from([*DENSE.values(), SPARSE]), st.sampled_from(list(DEVICES.values()))
)
shapes = st.builds(Shape, st.integers(1, 3000), st.integers(0, 600), st.integers(1, 200))

"""Makes small models on the spot: no download, the same bytes every time."""

from sglang_prefill_ext.modelmaker.maker import make_model
from sglang_prefill_ext.modelmaker.preset import Preset
from sglang_prefill_ext.modelmaker.presets import PRESETS

__all__ = ["PRESETS", "Preset", "make_model"]

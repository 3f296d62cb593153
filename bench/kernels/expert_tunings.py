"""Entries of the tuned tables of SGLang 0.5.23 that can be chosen for the experts of models."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from bench.moe.shapes import SHAPES, Shape
from sglang_prefill_ext.moe.blocks import BlockTable

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # SGLang's, about kernels that a machine lacks
    from sglang.srt.layers.moe.moe_runner import triton_utils
    from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe_triton_config

TOKENS = (2304, 8192)
"""Tokens of a ranking request, and of a large forward."""

QWEN3, MIXTRAL, GLM, GPT_OSS = SHAPES
Entry = Mapping[str, Any]


class Tuning(NamedTuple):
    """One table.

    Attributes:
        weights: dtype of the weights.
        file: SGLang's file with the table; empty for the entries that SGLang uses without a file.
        scaled: side of the square blocks of weights that share a scale; 0 without scales.
        has_bias: whether each product has a bias.
    """

    shape: Shape
    weights: str
    file: str = ""
    scaled: int = 0
    has_bias: bool = False

    def chosen(self) -> Iterator[tuple[Entry, Entry]]:
        """Yield what can be chosen: an entry for the up- and gate-, one for the down-projection."""
        up = self._entries()
        down = self._entries("_down") or up
        table = BlockTable({tokens: entry["BLOCK_SIZE_M"] for tokens, entry in up.items()})
        found = {each.tokens: None for tokens in TOKENS for each in table.candidates(tokens)}
        compiled: list[list[dict[str, Any]]] = []
        for pair in ((up[tokens], down[tokens]) for tokens in found):
            # GROUP_SIZE_M only orders programs; entries that differ by it alone compile equally.
            code = [{key: each[key] for key in each if key != "GROUP_SIZE_M"} for each in pair]
            if code not in compiled:
                compiled.append(code)
                yield pair

    def _entries(self, suffix: str = "") -> dict[int, Entry]:
        """Return tokens -> entry; the tables of both products have the same keys."""
        if not self.file:
            return {} if suffix else self._without_a_file()
        file = Path(triton_utils.__file__).parent / "configs" / f"{self.file}{suffix}.json"
        tuned = json.loads(file.read_text()) if file.exists() else {}
        return {int(tokens): entry for tokens, entry in tuned.items()}

    def _without_a_file(self) -> dict[int, Entry]:
        experts, width, hidden = self.shape.experts, self.shape.width, self.shape.hidden
        settings = SimpleNamespace(
            deterministic=SimpleNamespace(enable_deterministic_inference=False)
        )
        sizes = (experts, width, hidden, self.shape.top_k, None, False)
        with patch.object(fused_moe_triton_config, "get_exec", lambda: settings):
            return {
                tokens: fused_moe_triton_config.get_default_config(tokens, *sizes)
                for tokens in (experts, experts + 1)
            }


TUNINGS = (
    Tuning(QWEN3, "bf16", "triton_3_7_1/E=128,N=768,device_name=NVIDIA_H100_80GB_HBM3"),
    Tuning(
        QWEN3,
        "fp8",
        "triton_3_2_0/E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128]",
        scaled=128,
    ),
    Tuning(MIXTRAL, "bf16", "triton_3_1_0/E=8,N=14336,device_name=NVIDIA_H200"),
    Tuning(GLM, "bf16"),
    Tuning(GPT_OSS, "bf16", has_bias=True),
)

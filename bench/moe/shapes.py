"""Models whose experts are compared, and the assumed cost of their blocks."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_prefill_ext.moe.blocks import BlockTable, Entry
from sglang_prefill_ext.moe.policy import BlockTime

_LIKE_QWEN3 = {64: 16, 256: 32, 512: 64, 1024: 128, 2048: 128, 4096: 128}


@dataclass(frozen=True, slots=True)
class Shape:
    """The experts of one model.

    Attributes:
        blocks: tokens -> ``BLOCK_SIZE_M`` in SGLang 0.5.23 for an H200 and bfloat16, without small
            keys. Shapes without a tuned file (GLM-4.5-Air, gpt-oss) have those of Qwen3.
    """

    name: str
    experts: int
    top_k: int
    hidden: int
    width: int
    blocks: dict[int, int]

    @property
    def table(self) -> BlockTable:
        return BlockTable(self.blocks)

    def operations(self, rows: float) -> float:
        """Floating-point operations of the up-, gate- and down-projections of `rows` rows."""
        return 6.0 * self.hidden * self.width * rows


SHAPES = (
    Shape("Qwen3-30B-A3B", 128, 8, 2048, 768, _LIKE_QWEN3),
    Shape("Mixtral-8x7B", 8, 2, 4096, 14336, {64: 32, 128: 64, 256: 128, 1024: 128, 4096: 128}),
    Shape("GLM-4.5-Air", 128, 8, 4096, 1408, _LIKE_QWEN3),
    Shape("gpt-oss-20b", 32, 4, 2880, 2880, _LIKE_QWEN3),
)

ROW_TIMES = {16: 2.2, 32: 1.4, 64: 1.08, 128: 1.0}
"""Block -> time of a row over that of a row in a block of 128. These are assumptions, for kernels
that are limited by memory. With SGLang's table for an H100 and Qwen3-30B-A3B in bfloat16,
``bench.kernels.bench_expert_blocks`` measured 4.8, 3.2, 1.7 and 1.0 beyond 1,000 tokens."""


def assumed_times(table: BlockTable) -> dict[Entry, BlockTime]:
    """Times of a table's entries, in units of one row in a block of 128."""
    return {entry: BlockTime(0.0, ROW_TIMES[entry.block]) for entry in table.entries}

"""Packed rows as messages carry them."""

from __future__ import annotations

import msgspec

from sglang_prefill_ext.wire.overrides import overrides_from_bytes
from sglang_prefill_ext.wire.packed import PackedRows, from_bytes
from sglang_prefill_ext.wire.sampling import Sampling


class RowBytes(msgspec.Struct, frozen=True, array_like=True):
    """The fields of `PackedRows`, arrays as their bytes.

    Raises:
        PackingError: by `rows`, if they contradict each other.
    """

    tokens: bytes
    prefix_len: int
    suffix_lens: bytes
    label_ids: bytes
    label_lens: bytes
    normalised: bool
    vector_width: int
    read_lens: bytes
    prefix_reads: int
    num_best: int
    draws: bytes
    biases: bytes
    overrides: bytes
    overrides_dtype: str
    overrides_width: int
    adapter: str

    @classmethod
    def of(cls, rows: PackedRows) -> RowBytes:
        return cls(
            tokens=rows.tokens.tobytes(),
            prefix_len=rows.prefix_len,
            suffix_lens=rows.suffix_lens.tobytes(),
            label_ids=rows.label_ids.tobytes(),
            label_lens=rows.label_lens.tobytes(),
            normalised=rows.normalised,
            vector_width=rows.vector_width,
            read_lens=rows.read_lens.tobytes(),
            prefix_reads=rows.prefix_reads,
            num_best=rows.num_best,
            draws=rows.sampling.draws.tobytes(),
            biases=rows.sampling.biases.tobytes(),
            overrides=rows.overrides.tobytes(),
            overrides_dtype=rows.overrides.dtype.name if len(rows.overrides) else "",
            overrides_width=rows.overrides.shape[1],
            adapter=rows.adapter,
        )

    def rows(self, vector_width: int | None = None) -> PackedRows:
        """Return the rows, without copying their arrays.

        Args:
            vector_width: in the place of their own.
        """
        return PackedRows(
            tokens=from_bytes(self.tokens),
            prefix_len=self.prefix_len,
            suffix_lens=from_bytes(self.suffix_lens),
            label_ids=from_bytes(self.label_ids),
            label_lens=from_bytes(self.label_lens),
            normalised=self.normalised,
            vector_width=self.vector_width if vector_width is None else vector_width,
            read_lens=from_bytes(self.read_lens),
            prefix_reads=self.prefix_reads,
            num_best=self.num_best,
            sampling=Sampling.from_bytes(self.draws, self.biases),
            overrides=overrides_from_bytes(
                self.overrides, self.overrides_dtype, self.overrides_width
            ),
            adapter=self.adapter,
        )

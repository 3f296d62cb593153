"""What a request asks for at its reads, and how the answer lays out the values.

A *read* is a token after which something is asked about the next one. A request asks for labels
and the most probable tokens, or for vectors. Its answer has, read by read: the values of the
labels, then those of `Best`; or the numbers of the vector.

A row's reads are always its last tokens, without gaps. To read tokens that are not adjacent, the
reads in between ask for no labels, or no vector, and cost no logits. This is not possible where
only the last token of each row is read.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.wire.arrays import NO_INTS, Int32Array
from sglang_prefill_ext.wire.reads import LabelKind, Reads, Values, values_per_read
from sglang_prefill_ext.wire.sampling import Draw, Sampling

WHOLE_VECTOR = -1
"""`Vectors.width` of a request that does not know how wide the model's vectors are."""

VECTOR_AND_STATE = -2
"""As `WHOLE_VECTOR`; if a head makes the vectors, each is followed by its hidden state."""


class Labels(msgspec.Struct, tag=True, array_like=True, frozen=True, eq=False, gc=False):
    """Labels and the most probable tokens.

    With `sampling`, the read at the last token of a row differs: its first token is the drawn one,
    and log-probs are those of the distribution before tokens were left out (as SGLang's: after
    biases and temperature, before top-k, top-p and min-p).

    Attributes:
        ids: label ids of read 0, of read 1, ...; or one list that all reads share.
        lens: number of labels of each read; empty where all share one list.
        normalised: values are log-probs over the vocabulary (natural log). Otherwise they are
            logits, of which only differences within a read have a meaning; that is enough for a
            softmax over the labels.
        num_best: see `Best`; 0 where no most probable token is wanted.
        sampling: how a token is drawn behind each row; None where none is.
    """

    ids: Int32Array = NO_INTS
    lens: Int32Array = NO_INTS
    normalised: bool = True
    num_best: int = 0
    sampling: Sampling | None = None

    def check(self, num_reads: int, num_rows: int, *, row_ends: bool) -> None:
        """Check that labels and draws fit the reads of a request.

        Args:
            row_ends: each row has one read, at its last token.

        Raises:
            PackingError: they do not fit.
        """
        lens, sampling = self.lens, self.sampling
        if sampling is not None and (len(sampling) != num_rows or not self.num_best):
            raise PackingError("packed draws do not fit the rows")
        fits = self.num_best >= 0 and len(self.ids) + self.num_best > 0
        if len(lens) and fits:
            least = row_ends and not self.num_best
            fits = len(lens) == num_reads and int(lens.min()) >= least
            fits = fits and int(lens.sum()) == len(self.ids)
        if not fits:
            raise PackingError("packed labels do not fit the reads")

    def num_values(self, num_reads: int) -> int:
        """Values in the answer to all reads."""
        labels = len(self.ids) if len(self.lens) else len(self.ids) * num_reads
        return labels + values_per_read(0, self.num_best) * num_reads

    def lens_of(self, first: int, last: int) -> Int32Array:
        """Number of labels of each read, ``first <= read < last``; int32."""
        if len(self.lens):
            return self.lens[first:last]
        return np.full(last - first, len(self.ids), dtype=np.int32)

    def part(self, first: int, last: int, rows: slice, ends: NDArray[np.int64]) -> Reads:
        """What is asked at ``first <= read < last``.

        Args:
            rows: the rows whose last tokens are among these reads.
            ends: the reads of those last tokens, as indices within this part.
        """
        count, ids = last - first, self.ids
        if len(self.lens):
            start, stop = int(self.lens[:first].sum()), int(self.lens[:last].sum())
            ids = ids[start:stop]
        elif count != 1:
            ids = np.tile(ids, count)
        kinds = np.full(count, LabelKind(self.num_best, self.normalised, Draw.NONE).number)
        sampling = None if self.sampling is None else self.sampling[rows]
        if sampling is not None:
            kinds[ends] += sampling.kinds
        return Reads(ids, self.lens_of(first, last), kinds, sampling)

    def by_read(self, values: Values) -> Values | list[Values]:
        """Divide an answer that has only label values among the reads that have labels.

        Returns:
            A table ``[reads, labels]`` where all share their labels, else one array a read.
        """
        if len(self.lens):
            return np.split(values, np.cumsum(self.lens[self.lens > 0])[:-1])
        return values.reshape(-1, len(self.ids))

    @property
    def merges(self) -> bool:
        """Whether the reads of equal rows may become one, see `merged`."""
        return self.sampling is None and not (len(self.lens) and self.num_best)

    def merged(self, number_of: NDArray[np.int64]) -> tuple[Labels, NDArray[np.int64]]:
        """Merge reads of equal rows into one each; only if `merges`.

        Args:
            number_of: for each read, the index of the merged read that stands for it; int64
                ``[reads]``.

        Returns:
            The merged labels; and for every value of the full answer, its index in the answer to
            these, int64.
        """
        if not len(self.lens):
            return self, _places(number_of, self.num_values(1))
        by_read = np.argsort(np.repeat(number_of, self.lens), kind="stable")
        places = np.empty_like(by_read)
        places[by_read] = np.arange(len(by_read))
        lens = np.bincount(number_of, weights=self.lens).astype(self.lens.dtype)
        return msgspec.structs.replace(self, ids=self.ids[by_read], lens=lens), places

    def of_width(self, vector: int, state: int) -> Labels:
        """See `Vectors.of_width`; labels have no width."""
        return self


class Vectors(msgspec.Struct, tag=True, array_like=True, frozen=True, eq=False, gc=False):
    """Vectors that the model makes, one a read. Methods are those of `Labels`.

    Attributes:
        width: leading numbers that are wanted of each, or `WHOLE_VECTOR` or `VECTOR_AND_STATE`.
        wanted: 1 for a read that asks for a vector, else 0; empty if each row is read only at its
            last token, which then asks for one.
    """

    ids: ClassVar[Int32Array] = NO_INTS
    sampling: ClassVar[Sampling | None] = None
    merges: ClassVar[bool] = True

    width: int
    wanted: Int32Array = NO_INTS

    def check(self, num_reads: int, num_rows: int, *, row_ends: bool) -> None:
        wanted = self.wanted
        fits = bool(((wanted == 0) | (wanted == 1)).all()) and bool(wanted.any()) != row_ends
        is_width = self.width > 0 or self.width in (WHOLE_VECTOR, VECTOR_AND_STATE)
        if not is_width or not fits or len(wanted) != (0 if row_ends else num_reads):
            raise PackingError("packed labels do not fit the reads")

    def num_values(self, num_reads: int) -> int:
        return self.width * (int(self.wanted.sum()) if len(self.wanted) else num_reads)

    def lens_of(self, first: int, last: int) -> Int32Array:
        if len(self.wanted):
            return self.wanted[first:last] * np.int32(self.width)
        return np.full(last - first, self.width, dtype=np.int32)

    def part(self, first: int, last: int, rows: slice, ends: NDArray[np.int64]) -> Reads:
        no_kinds = np.zeros(last - first, dtype=np.int64)
        return Reads(NO_INTS, self.lens_of(first, last), no_kinds, None)

    def by_read(self, values: Values) -> Values:
        return values.reshape(-1, self.width)

    def merged(self, number_of: NDArray[np.int64]) -> tuple[Vectors, NDArray[np.int64]]:
        return self, _places(number_of, self.width)

    def of_width(self, vector: int, state: int) -> Vectors:
        """These reads with numbers in place of `WHOLE_VECTOR` and `VECTOR_AND_STATE`.

        Args:
            vector, state: widths of the model's vectors and of its hidden states.
        """
        known = {WHOLE_VECTOR: vector, VECTOR_AND_STATE: vector + state}
        return Vectors(known.get(self.width, self.width), self.wanted)


Read: TypeAlias = Labels | Vectors


def require_made(read: Read, width: int) -> None:
    """Check that a model makes what is read; else it would break a forward with others' rows.

    Args:
        width: of the model's vectors with their states; 0 if it makes labels' logits.

    Raises:
        PackingError: it does not.
    """
    made = 0 < read.width <= width if isinstance(read, Vectors) else not width
    if not made:
        what = f"vectors of {width} numbers at most" if width else "no vectors"
        raise PackingError(f"packed rows ask for what the model does not make; it makes {what}")


def _places(number_of: NDArray[np.int64], each: int) -> NDArray[np.int64]:
    return (number_of[:, None] * each + np.arange(each)).ravel()

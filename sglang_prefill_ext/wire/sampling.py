"""How the next tokens of rows are drawn, as flat arrays.

::

    draws   one a row: temperature, top_p, min_p, top_k, seed, number of its biases, other bias
    biases  token and bias (added to its logit), those of row 0, of row 1, ...

The other bias is added to the logits of all tokens that have none of their own.

Parameters have SGLang's meaning, after it has filled in and checked them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.wire.arrays import places_of_ranges

Records: TypeAlias = NDArray[np.void]

WHOLE_VOCABULARY = 1 << 30
"""`top_k` of a row that draws from all tokens; SGLang's `TOP_K_ALL`."""

# Double precision, so that SGLang's sampler gets exactly the numbers of the request.
_DRAW = np.dtype(
    [
        ("temperature", "<f8"),
        ("top_p", "<f8"),
        ("min_p", "<f8"),
        ("seed", "<i8"),
        ("top_k", "<i4"),
        ("num_biases", "<i4"),
        ("other_bias", "<f4"),
    ]
)
_BIAS = np.dtype([("token", "<i4"), ("value", "<f4")])


def bias_records(tokens: ArrayLike, values: ArrayLike) -> Records:
    """Biases as they travel; `values` may be one for all tokens."""
    records = np.empty(np.shape(tokens), dtype=_BIAS)
    records["token"], records["value"] = tokens, values
    return records


class Draw(IntEnum):
    """How a token is chosen; SGLang's sampler computes each of these in another way.

    SGLang chooses one way for a whole batch. Here rows are sampled apart by kind, so that a draw
    does not depend on the other rows.
    """

    NONE = 0  # no token is drawn at this read
    GREEDY = 1
    PLAIN = 2
    FILTERED = 3  # by top_k, top_p or min_p


class Sampling:
    """How the next token of each of some rows is drawn.

    Raises:
        PackingError: the arrays contradict each other.
    """

    __slots__ = ("biases", "draws")

    def __init__(self, draws: Records, biases: Records) -> None:
        counts = draws["num_biases"]
        if (counts < 0).any() or int(counts.sum()) != len(biases):
            raise PackingError("packed biases do not fit the draws")
        self.draws, self.biases = draws, biases

    @classmethod
    def one(
        cls,
        *,
        temperature: float,
        top_p: float,
        min_p: float,
        top_k: int,
        seed: int,
        biases: Mapping[int, float] | Records,
        other_bias: float = 0.0,
    ) -> Sampling:
        """The sampling of one row.

        Args:
            biases: what is added to each token's logit, or `bias_records` of it; minus infinity
                forbids the token.
            other_bias: what is added to the logits of all other tokens.
        """
        draw = (temperature, top_p, min_p, seed, top_k, len(biases), other_bias)
        if isinstance(biases, Mapping):
            biases = bias_records([*biases], [*biases.values()])
        return cls(np.array([draw], dtype=_DRAW), biases)

    @classmethod
    def from_bytes(cls, draws: bytes, biases: bytes) -> Sampling:
        """Read arrays without copying; they are read-only.

        Raises:
            PackingError: the bytes are incomplete, or the arrays contradict each other.
        """
        if len(draws) % _DRAW.itemsize or len(biases) % _BIAS.itemsize:
            raise PackingError(f"draws of {len(draws)} and biases of {len(biases)} bytes are torn")
        return cls(np.frombuffer(draws, dtype=_DRAW), np.frombuffer(biases, dtype=_BIAS))

    @classmethod
    def joined(cls, parts: Iterable[Sampling | None]) -> Sampling | None:
        """The sampling of the rows of all parts, in order; None where no part has any."""
        known = [part for part in parts if part is not None]
        if not known:
            return None
        return cls(
            np.concatenate([part.draws for part in known]),
            np.concatenate([part.biases for part in known]),
        )

    def __len__(self) -> int:
        return len(self.draws)

    def __getitem__(self, rows: Any) -> Sampling:
        """The sampling of some rows, which a slice, indices or a mask select."""
        draws, lens = self.draws[rows], self.draws["num_biases"].astype(np.int64)
        starts, counts = (np.cumsum(lens) - lens)[rows], lens[rows]
        return Sampling(draws, self.biases[places_of_ranges(starts, counts)])

    @property
    def kinds(self) -> NDArray[np.int64]:
        """`Draw` of every row; int64 ``[rows]``."""
        draws = self.draws
        greedy = draws["top_k"] <= 1
        plain = (draws["top_k"] == WHOLE_VOCABULARY) & (draws["top_p"] == 1) & (draws["min_p"] <= 0)
        return np.select([greedy, plain], [int(Draw.GREEDY), int(Draw.PLAIN)], int(Draw.FILTERED))

    @property
    def rows_of_biases(self) -> NDArray[np.int64]:
        """The row of every bias; int64 ``[biases]``."""
        return np.repeat(np.arange(len(self)), self.draws["num_biases"])

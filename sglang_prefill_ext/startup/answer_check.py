"""Whether the answers of both paths to the known prompts are the same; pure numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.config import AttentionWay

LABEL_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.25, "float16": 0.25}
"""Largest difference of a log-probability, by dtype (natural logarithm).

Ten times the parity that is aimed at in float32. In bfloat16 logits from 16 to 32 are multiples of
0.125, and each path may round the other way: two such steps. What is wrong, such as a mask or a
position, moves log-probabilities by about 1 and more."""

VECTOR_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1, "float16": 0.1}
"""Largest distance of two vectors, in lengths of the stock one: a cosine of 0.995 in bfloat16."""

NOISE_FACTOR = 4
"""Where the stock path's own answers to a prompt alone and in a batch differ by d, the paths may
differ by so many times d: they choose other kernels, and sum in another order, in more places."""

LARGEST_FACTOR = 4
"""No tolerance is more than so many times that of its dtype, however noisy the model: that is what
a wrong mask or position moves. One prompt may come near it, in half precision, if its median answer
is within the tolerance: a router may choose another expert where two are almost equal."""

LARGE_LOGPROB = 10.0
"""Beyond this the difference is relative: it counts per multiple of 10, as rounding grows with the
logits."""

MOST_OUTLIERS = 1
"""Prompts that may be beyond the usual tolerance."""

Matrix = NDArray[np.float64]


class Tolerance(NamedTuple):
    """What is no error of a prompt's answers.

    Attributes:
        usual: how far they may be apart.
        worst: how far those of one prompt may be, whose median is within the usual.
    """

    usual: float
    worst: float


@dataclass(frozen=True, slots=True)
class AnswerCheck:
    """How far the two paths' answers differ; the same on every rank.

    Attributes:
        prompts: of each prompt, tokens of the prefix it shares and tokens of its own.
        differences: the largest of each prompt, see `gaps`; infinite where only one path gave a
            number.
        medians: the median one of each prompt.
        tolerance: what they may be at most.
        seconds: what finding out took.
    """

    prompts: tuple[tuple[int, int], ...]
    differences: tuple[float, ...]
    medians: tuple[float, ...]
    tolerance: Tolerance
    seconds: float

    @property
    def same(self) -> bool:
        """Whether the answers are within the tolerance; nothing compared is not."""
        usual, worst = self.tolerance
        beyond = sum(difference > usual for difference in self.differences)
        within = bool(self.differences) and max(self.medians) <= usual
        return within and self.largest <= worst and beyond <= MOST_OUTLIERS

    @property
    def largest(self) -> float:
        return max(self.differences, default=float("inf"))

    def as_dict(self) -> dict[str, object]:
        """Return it ready for JSON, where an infinite difference is None."""
        return {
            "verdict": "same" if self.same else "differ",
            "prompts": len(self.prompts),
            "largest_difference": self.largest if np.isfinite(self.largest) else None,
            "tolerance": self.tolerance.usual,
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        worst = self.differences.index(self.largest)
        shared, own = self.prompts[worst]
        return (
            f"{len(self.prompts)} prompts, largest difference {self.largest:.1e} at prompt "
            f"{worst + 1} ({shared} tokens of a shared prefix and {own} of its own), tolerance "
            f"{self.tolerance.usual:g}, {self.seconds:.2f} s"
        )


class Attempt(NamedTuple):
    """A way to run packed forwards; `suspect` is what the attempt before it had besides."""

    attention: AttentionWay
    graphs: bool
    suspect: str = ""

    @property
    def described(self) -> str:
        """For the log."""
        graphs = "with graphs" if self.graphs else "without graphs"
        return f"--prefill-only-attention {self.attention} {graphs}"


def attempts(attention: AttentionWay, *, graphs: bool) -> list[Attempt]:
    """What is tried in turn until a way answers as the stock path does, the way asked for first."""
    tried = [Attempt(attention, graphs)]
    if graphs:
        tried.append(Attempt(attention, False, "replaying forwards as graphs"))
    if attention is not AttentionWay.TORCH:
        tried.append(Attempt(AttentionWay.TORCH, False, f"--prefill-only-attention {attention}"))
    return tried


def gaps(stock: Matrix, packed: Matrix, *, vectors: bool) -> Matrix:
    """How far each answer is from the other path's, ``[prompts, answers]``.

    Args:
        stock, packed: ``[prompts, values]``. A NaN, or an infinite number, is like itself and
            infinitely far from anything else.
        vectors: the values of a prompt are a vector, else log-probabilities.

    Returns:
        Of vectors the Euclidean distance, in lengths of the stock one if that is over 1; else the
        difference of every log-probability, see `LARGE_LOGPROB`.
    """
    equal = (stock == packed) | (np.isnan(stock) & np.isnan(packed))
    with np.errstate(invalid="ignore"):
        apart = np.where(equal, 0.0, np.abs(stock - packed))
    apart[np.isnan(apart)] = np.inf
    sizes = np.where(np.isfinite(stock), np.abs(stock), 0.0)
    if vectors:
        lengths = np.maximum(1.0, np.linalg.norm(sizes, axis=1, keepdims=True))
        found: Matrix = np.linalg.norm(apart, axis=1, keepdims=True) / lengths
    else:
        found = apart / np.maximum(1.0, sizes / LARGE_LOGPROB)
    return found


def tolerance_of(dtype: str, *, quantised: bool, vectors: bool, noise: float = 0.0) -> Tolerance:
    """Return what difference is no error.

    Args:
        dtype: of the model's numbers, e.g. ``"float32"``.
        quantised: weights or the KV cache are, and round like half precision or more.
        vectors: see `gaps`.
        noise: the largest gap between the stock path's answers to a prompt alone and in a batch.
    """
    by_dtype = VECTOR_TOLERANCE if vectors else LABEL_TOLERANCE
    dtype = "bfloat16" if quantised else dtype
    least, most = by_dtype[dtype], LARGEST_FACTOR * by_dtype[dtype]
    usual = min(max(least, NOISE_FACTOR * noise), most)
    return Tolerance(usual, usual if dtype == "float32" else most)

"""Decide whether packed and stock path answer the known prompts the same; pure numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.config import AttentionWay

LABEL_TOLERANCE = {"float32": 1e-4, "tf32": 5e-3, "bfloat16": 0.25, "float16": 0.25}
"""Largest difference of a log-probability, by arithmetic (natural logarithm).

In float32 it is ten times the difference that is aimed at. TF32 has eleven bits, so that a factor
of a product is off by about 2**-11 = 4.9e-4 of itself: ten such roundings. In bfloat16, logits from
16 to 32 are multiples of 0.125, and the two paths may round in opposite directions: two such steps.
An error, such as a wrong mask or position, changes log-probabilities by about 1 and more."""

VECTOR_TOLERANCE = {"float32": 1e-4, "tf32": 5e-3, "bfloat16": 0.1, "float16": 0.1}
"""Largest distance of two vectors, in lengths of the stock one: a cosine of 0.995 in bfloat16. With
TF32, encoders on an H100 were up to 7e-4 apart."""

NOISE_FACTOR = 4
"""If the stock path's own answers to a prompt alone and in a batch differ by d, the paths may
differ by so many times d. They choose other kernels and sum in another order, as a batch does, but
in more places."""

LARGEST_FACTOR = 4
"""No tolerance exceeds so many times that of its dtype, however noisy the model: beyond it lie the
differences that a wrong mask or position makes. In half precision one prompt may be off by as much
if its median answer is within the usual tolerance: where two experts are almost equally probable, a
router may choose another one."""

LARGE_LOGPROB = 10.0
"""Differences of log-probs beyond this are relative, per multiple of 10, as rounding grows with the
logits."""

COVERED_LAYERS = 16
"""In half precision each layer rounds anew, so that differences of log-probabilities grow with the
square root of the number of layers. The usual tolerance covers so many; with 48 layers of random
weights, the paths differed by up to 0.35 in all prompts but one."""

MOST_OUTLIERS = 1
"""How many prompts may exceed the usual tolerance."""

Matrix = NDArray[np.float64]


class Tolerance(NamedTuple):
    """How far the answers of both paths to a prompt may differ.

    Attributes:
        usual: the most for all prompts but `MOST_OUTLIERS`, and for the median of every prompt.
        worst: the most for any prompt.
    """

    usual: float
    worst: float


@dataclass(frozen=True, slots=True)
class AnswerCheck:
    """How far the two paths' answers differ; the same on every rank.

    Attributes:
        prompts: of each prompt, the tokens of its shared prefix and its own tokens.
        differences: the largest difference of each prompt, see `gaps`; infinite unless both paths
            gave a number.
        medians: the median difference of each prompt.
        tolerance: limits of both.
        seconds: duration of the check.
        spread: the largest difference between the stock path's answers to two of the prompts.
    """

    prompts: tuple[tuple[int, int], ...]
    differences: tuple[float, ...]
    medians: tuple[float, ...]
    tolerance: Tolerance
    seconds: float
    spread: float = float("inf")

    @property
    def is_telling(self) -> bool:
        """Whether answers to different prompts differ by more than the tolerance, so that wrong
        answers could be told from right ones."""
        return self.spread > self.tolerance.usual

    @property
    def same(self) -> bool:
        """Whether the answers are within the tolerance; False if there were no prompts."""
        usual, worst = self.tolerance
        beyond = sum(difference > usual for difference in self.differences)
        within = bool(self.differences) and max(self.medians) <= usual
        return within and self.largest <= worst and beyond <= MOST_OUTLIERS

    @property
    def largest(self) -> float:
        return max(self.differences, default=float("inf"))

    def as_dict(self) -> dict[str, object]:
        """Return the result ready for JSON; an infinite difference becomes None."""
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
        apart = f"largest difference {self.largest:.1e}"
        if not np.isfinite(self.largest):
            apart = "no numbers of both paths"
        return (
            f"{len(self.prompts)} prompts, {apart} at prompt {worst + 1} ({shared} tokens of a "
            f"shared prefix and {own} of its own), tolerance {self.tolerance.usual:g}, "
            f"{self.seconds:.2f} s"
        )


class Attempt(NamedTuple):
    """A way to run packed forwards.

    `graph_tokens` are those of the largest graph, 0 for none. `suspect` names what the attempt
    before used and this one does not.
    """

    attention: AttentionWay
    graph_tokens: int
    suspect: str = ""

    @property
    def described(self) -> str:
        """For the log."""
        graphs = "with graphs" if self.graph_tokens else "without graphs"
        return f"--prefill-only-attention {self.attention} {graphs}"


def attempts(attention: AttentionWay, graph_tokens: int) -> list[Attempt]:
    """Return the ways to try in turn until one answers like the stock path, beginning with this."""
    tried = [Attempt(attention, graph_tokens)]
    if graph_tokens:
        tried.append(Attempt(attention, 0, "replaying forwards as graphs"))
    if attention is not AttentionWay.TORCH:
        tried.append(Attempt(AttentionWay.TORCH, 0, f"--prefill-only-attention {attention}"))
    return tried


def gaps(stock: Matrix, packed: Matrix, *, vectors: bool) -> Matrix:
    """Return the differences between the answers of both paths, ``[prompts, answers]``.

    Args:
        stock, packed: ``[prompts, values]``. NaN equals NaN, an infinite number equals itself, and
            both are infinitely far from anything else.
        vectors: whether the values of a prompt are a vector; else they are log-probabilities.

    Returns:
        For vectors, one Euclidean distance a prompt, divided by the length of the stock vector if
        that is over 1; else the difference of every log-probability, see `LARGE_LOGPROB`.
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


def tolerance_of(
    dtype: str,
    *,
    quantised: bool,
    vectors: bool,
    tf32: bool = False,
    noise: float = 0.0,
    depth: int = COVERED_LAYERS,
) -> Tolerance:
    """Return the tolerance for a model.

    Args:
        dtype: of the model, e.g. ``"float32"``.
        quantised: whether weights or the KV cache are quantised; they then round at least as
            coarsely as half precision.
        vectors: see `gaps`.
        tf32: whether SGLang may multiply float32 in TF32. Its Triton kernels do so on a GPU.
        noise: the largest gap between the stock path's answers to a prompt alone and in a batch.
        depth: layers of the model.
    """
    by_dtype = VECTOR_TOLERANCE if vectors else LABEL_TOLERANCE
    dtype = "bfloat16" if quantised else dtype
    least = by_dtype["tf32" if tf32 and dtype == "float32" else dtype]
    most = LARGEST_FACTOR * least
    if dtype != "float32" and not vectors:
        least *= max(1.0, depth / COVERED_LAYERS) ** 0.5
    usual = min(max(least, NOISE_FACTOR * noise), most)
    return Tolerance(usual, usual if dtype == "float32" else most)

"""The results of an outside tool on a server, and their comparison for two servers (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bench.gate import Matrix

PACKED = "packed"


@dataclass(frozen=True, slots=True, eq=False)
class Opinion:
    """The results of a tool on one server.

    Attributes:
        requests: requests sent; the extension must have packed all of them.
        numbers: ``[n]``, every number of the answers, always in the same order.
        marks: name -> metric that the tool computes from them, such as an accuracy.
    """

    requests: int
    numbers: Matrix
    marks: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a tool can tell the extension from stock.

    Attributes:
        judge: the tool, with its version.
        requests: number of requests that it sent to each server.
        numbers: number of compared numbers.
        largest_difference: between two numbers; NaN if one of them is NaN.
        tolerance: upper limit of that difference.
        stock, extension: the marks of each.
        counted: path, `PACKED` or ``"stock"`` -> requests that the extension counted meanwhile.
    """

    judge: str
    requests: int
    numbers: int
    largest_difference: float
    tolerance: float
    stock: Mapping[str, float]
    extension: Mapping[str, float]
    counted: Mapping[str, int]

    def faults(self) -> list[str]:
        """List what is wrong with the extension or with the comparison; empty if nothing is."""
        faults = []
        if not self.numbers or not self.stock:
            faults.append("nothing was compared")
        if not self.largest_difference <= self.tolerance:
            faults.append(f"numbers differ by {self.largest_difference:.1e}")
        faults += [
            f"{name} is {mark} with stock, {self.extension.get(name)} with the extension"
            for name, mark in self.stock.items()
            if mark != self.extension.get(name)
        ]
        if self.counted != {PACKED: self.requests}:
            faults.append(f"of {self.requests} requests the extension counted {self.counted}")
        return faults


def compare(
    judge: str, stock: Opinion, extension: Opinion, counted: Mapping[str, int], tolerance: float
) -> Verdict:
    """Compare two opinions; see `Verdict`.

    Opinions with different counts of numbers or requests differ infinitely.
    """
    same_work = len(stock.numbers) == len(extension.numbers) and (
        stock.requests == extension.requests
    )
    largest = np.inf
    if same_work:
        largest = float(np.abs(stock.numbers - extension.numbers).max(initial=0.0))
    return Verdict(
        judge,
        extension.requests,
        len(extension.numbers),
        largest,
        tolerance,
        stock.marks,
        extension.marks,
        counted,
    )

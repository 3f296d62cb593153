"""What an outside tool thinks of a server, and whether it thinks the same of both (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bench.gate import Matrix

PACKED = "packed"


@dataclass(frozen=True, slots=True, eq=False)
class Opinion:
    """What a tool found out about one server.

    Attributes:
        requests: sent to the server; a server that packs must have packed all of them.
        numbers: ``[n]``, every number of the answers, always in the same order.
        marks: what the tool makes of them, such as an accuracy, by name.
    """

    requests: int
    numbers: Matrix
    marks: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a tool can tell the extension from stock.

    Attributes:
        judge: the tool, with its version.
        requests: that it sent to each server.
        numbers: compared.
        largest_difference: of two numbers; NaN if either is.
        tolerance: of it.
        stock, extension: the marks.
        counted: requests by path, `PACKED` or ``"stock"``, as the extension counted them meanwhile.
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
        """Return what speaks against the extension, or against the comparison; empty if nothing."""
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
    judge: str,
    stock: Opinion,
    extension: Opinion,
    counted: Mapping[str, int],
    tolerance: float,
) -> Verdict:
    """Hold two opinions against each other; see `Verdict`.

    Opinions on different amounts of numbers, or after different amounts of requests, differ
    infinitely.
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

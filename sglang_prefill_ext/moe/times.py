"""Times of table entries: measured at start, fitted to a line, and kept in a file."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from sglang_prefill_ext.moe.blocks import Entry
from sglang_prefill_ext.moe.policy import BlockTime, Times

logger = logging.getLogger(__name__)

_MORE = 4  # times as many rows in the longer run


class Sample(NamedTuple):
    """One measurement: rows that were computed, and seconds that they took."""

    rows: int
    seconds: float


class _Kept(msgspec.Struct, frozen=True):
    about: str
    times: list[tuple[int, int, float, float]]


def fitted(few: Sample, many: Sample) -> BlockTime:
    """The line through two samples with `few.rows` < `many.rows`.

    If that line does not rise, or begins below 0, the result is the line through the origin and the
    larger sample.
    """
    row_s = (many.seconds - few.seconds) / (many.rows - few.rows)
    fixed_s = few.seconds - row_s * few.rows
    if row_s <= 0 or fixed_s < 0:
        return BlockTime(0.0, max(many.seconds, 1e-12) / many.rows)
    return BlockTime(fixed_s, row_s)


def file_of(directory: Path, about: str) -> Path:
    """The file for the times that `about` describes: of one device, shape and versions."""
    return directory / f"{hashlib.sha256(about.encode()).hexdigest()[:32]}.json"


def read_times(file: Path, about: str) -> Times:
    """The times in a file; none if it is missing, broken, or about something else."""
    try:
        kept = msgspec.json.decode(file.read_bytes(), type=_Kept)
    except (OSError, msgspec.DecodeError):
        return {}
    if kept.about != about or any(fixed < 0 or row <= 0 for _, _, fixed, row in kept.times):
        return {}
    return {Entry(tokens, block): BlockTime(*time) for tokens, block, *time in kept.times}


def write_times(file: Path, about: str, times: Mapping[Entry, BlockTime]) -> None:
    """Write times to a file atomically.

    Args:
        about: the device, the shape and the versions, as text.

    Raises:
        OSError: the directory cannot be written.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partly = file.with_suffix(f".{os.getpid()}.part")  # ranks measure at once
    kept = _Kept(about, [(*entry, *time) for entry, time in times.items()])
    partly.write_bytes(msgspec.json.encode(kept))
    partly.replace(file)


def measured_times(
    entries: Sequence[Entry], experts: int, seconds_of: Callable[[Entry, int], float]
) -> dict[Entry, BlockTime]:
    """Time each entry at two sizes at which all blocks are full.

    An entry that fails, e.g. because its kernel does not compile, is logged and left out.

    Args:
        seconds_of: measures how long an entry takes if every expert gets that number of rows.
    """
    full = max(entry.block for entry in entries)

    def measured(entry: Entry) -> BlockTime:
        few, many = (
            Sample(experts * rows, seconds_of(entry, rows)) for rows in (full, _MORE * full)
        )
        return fitted(few, many)

    return _of_those_that_run(entries, measured)


def tried_times(times: Times, run: Callable[[Entry], object]) -> dict[Entry, BlockTime]:
    """Return the kept times of the entries that run; one that fails is logged and left out."""

    def tried(entry: Entry) -> BlockTime:
        run(entry)
        return times[entry]

    return _of_those_that_run(times, tried)


def _of_those_that_run(
    entries: Iterable[Entry], time_of: Callable[[Entry], BlockTime]
) -> dict[Entry, BlockTime]:
    times: dict[Entry, BlockTime] = {}
    for entry in entries:
        try:
            times[entry] = time_of(entry)
        except Exception as error:
            # Compilers and drivers raise errors of any type; the other entries can still serve.
            logger.warning("Experts: blocks of %s rows are left out: %s", entry.block, error)
    return times

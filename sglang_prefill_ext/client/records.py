"""Records of JSONL and CSV files, each with its line; a bad one does not end the reading."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

from sglang_prefill_ext.client.requests import Labels
from sglang_prefill_ext.errors import RequestError

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Record:
    """One record.

    Attributes:
        line: where it ends, from 1.
        load: returns its fields, or raises `RequestError`.
    """

    line: int
    load: Callable[[], Fields]


def read_jsonl(lines: IO[bytes]) -> Iterator[Record]:
    """Read one object a line; blank lines are passed over."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield Record(number, partial(_parse, line))


def read_csv(lines: Iterable[str]) -> Iterator[Record]:
    """Read rows under a header; a cell of items or labels that begins with ``[`` is a JSON list.

    Args:
        lines: UTF-8 decoded with ``errors="surrogateescape"``, so that a wrong byte costs one row.
    """
    reader = csv.DictReader(lines, strict=True)
    try:
        for row in reader:
            yield Record(reader.line_num, partial(_typed, row))
    except csv.Error as error:
        yield Record(reader.line_num, partial(_refuse, f"not CSV, reading ends here: {error}"))


def label_ids(value: Any) -> Labels:
    """Return label token ids that are given as a list or as text, ``1,2``."""
    if not isinstance(value, str):
        return value  # type: ignore[no-any-return]
    try:
        return [int(number) for number in value.split(",")]
    except ValueError as error:
        raise RequestError(
            f"label_token_ids: {value!r} is not a list of token ids. Write e.g. 1,2."
        ) from error


def field(fields: Fields, name: str) -> Any:
    """Return a field that must be there."""
    if fields.get(name) is None:
        raise RequestError(f"{name}: missing; the record has {', '.join(fields) or 'no field'}.")
    return fields[name]


def _refuse(reason: str) -> Fields:
    raise RequestError(reason)


def _parse(line: bytes) -> Fields:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"not JSON: {error}") from error
    if not isinstance(found, dict):
        raise RequestError("not a JSON object. Write one object a line.")
    return found


def _typed(row: dict[str | Any, Any]) -> Fields:
    if None in row or None in row.values():
        raise RequestError("the row has not as many cells as the header.")
    try:
        "".join(row.values()).encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"not UTF-8: {error}") from error
    lists = {name for name in ("items", "label_token_ids") if row.get(name, "").startswith("[")}
    try:
        return row | {name: json.loads(row[name]) for name in lists}
    except (ValueError, RecursionError) as error:
        raise RequestError(f"a list is not JSON: {error}") from error

"""Reads records of JSONL and CSV files, and answers many at a time, in order.

A bad record fails alone.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sglang_prefill_ext.client.requests import Labels
from sglang_prefill_ext.errors import PrefillExtError, RequestError, ServerUnavailableError

Fields = dict[str, Any]

_LONGEST_CELL = 2**31 - 1
"""Python's own limit, of the whole process, is 131,072 characters; a list of items has more."""

_TOKEN_ID = re.compile(r"\s*-?[0-9]{1,19}\s*")
"""`int` also reads ``1_0`` and digits of other scripts."""

_ONE_EACH = "Write one object per line."


@dataclass(frozen=True, slots=True)
class Record:
    """One record.

    Attributes:
        line: number of its last line, from 1.
        load: returns its fields, or raises `RequestError`.
    """

    line: int
    load: Callable[[], Fields]


def read_jsonl(lines: IO[bytes]) -> Iterator[Record]:
    """Read one object a line; blank lines are skipped."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield Record(number, partial(_parse, line))


def read_csv(lines: Iterable[str]) -> Iterator[Record]:
    """Read rows under a header; a cell of items or labels that begins with ``[`` is a JSON list.

    Args:
        lines: UTF-8 decoded with ``errors="surrogateescape"``, so that a wrong byte costs one row.
    """
    csv.field_size_limit(_LONGEST_CELL)
    reader = csv.DictReader(lines, strict=True)
    try:
        for row in reader:
            yield Record(reader.line_num, partial(_typed, row))
    except csv.Error as error:
        yield Record(reader.line_num, partial(_refuse, f"not CSV, reading ends here: {error}"))


def records_of(source: IO[bytes]) -> Iterator[Record]:
    """Records of a file, by its suffix; stdin has none."""
    if not str(getattr(source, "name", "")).endswith(".csv"):
        return read_jsonl(source)
    return read_csv(codecs.iterdecode(source, "utf-8-sig", errors="surrogateescape"))


def label_ids(value: Any) -> Labels | None:
    """Return label token ids that are given as a list or as text, ``1,2``; None stays None."""
    if not isinstance(value, str):
        return value  # type: ignore[no-any-return]
    numbers = value.split(",")
    if not all(map(_TOKEN_ID.fullmatch, numbers)):
        raise RequestError(
            f"label_token_ids: {value!r:.80} is not a list of token ids. Write e.g. 1,2; "
            "/tokenize gives those of a text."
        )
    return list(map(int, numbers))


def field(fields: Fields, name: str, remedy: str = "") -> Any:
    """Return a field that must be there; what to do otherwise is `remedy`."""
    if fields.get(name) is None:
        has = ", ".join(fields) or "no field"
        raise RequestError(f"{name}: missing; the record has {has}. {remedy}".rstrip())
    return fields[name]


def _refuse(reason: str) -> Fields:
    raise RequestError(reason)


def _parse(line: bytes) -> Fields:
    try:
        found = json.loads(line.rstrip())
    except (ValueError, RecursionError) as error:
        raise RequestError(f"not JSON: {error}. {_ONE_EACH}") from error
    if not isinstance(found, dict):
        raise RequestError(f"not a JSON object. {_ONE_EACH}")
    return found


def _typed(row: dict[str | Any, Any]) -> Fields:
    if None in row or None in row.values():
        raise RequestError("the row has fewer or more cells than the header.")
    try:
        "".join(row.values()).encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"not UTF-8: {error}") from error
    lists = {name for name in ("items", "label_token_ids") if row.get(name, "").startswith("[")}
    try:
        return row | {name: json.loads(row[name]) for name in lists}
    except (ValueError, RecursionError) as error:
        raise RequestError(f"a list is not JSON: {error}") from error


Answer = Callable[[Fields], Fields]
Outcome = tuple[int, Fields | PrefillExtError]


def answer_file(source: IO[bytes], output: IO[str], answer: Answer, concurrency: int) -> bool:
    """Answer every record of a file, write the answers as JSONL and errors to stderr.

    Returns:
        Whether no record failed.

    Raises:
        ServerUnavailableError: no server answers; earlier answers are written.
    """
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("lines"), TimeElapsedColumn())
    failed = 0
    shown = console.is_terminal  # elsewhere it would leave an empty line
    with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
        task = progress.add_task("", total=_lines(source))
        for line, result in outcomes(records_of(source), answer, concurrency):
            if isinstance(result, PrefillExtError):
                failed += 1
                said = f"line {line}: {result}"
                console.print(said, markup=False, highlight=False, soft_wrap=True)
            else:
                output.write(json.dumps(result) + "\n")
                output.flush()  # so that answers are kept if the run is ended later
            progress.update(task, completed=line)
    return not failed


def outcomes(records: Iterable[Record], answer: Answer, concurrency: int) -> Iterator[Outcome]:
    """Yield the line of each record, and its fields with the answer or what is wrong, in order.

    It holds at most a few records for each thread.
    """
    pool = ThreadPoolExecutor(concurrency)
    pending: deque[Future[Outcome]] = deque()
    try:
        for record in records:
            pending.append(pool.submit(_outcome, record, answer))
            if len(pending) >= 4 * concurrency:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _outcome(record: Record, answer: Answer) -> Outcome:
    try:
        return record.line, answer(record.load())
    except ServerUnavailableError:
        raise  # All later records would wait as long, and fail as well.
    except PrefillExtError as error:
        return record.line, error


def _lines(source: IO[bytes]) -> int | None:
    """Number of lines of a file; None if it can be read only once."""
    if not source.seekable():
        return None
    lines = sum(1 for _ in source)
    source.seek(0)
    return lines

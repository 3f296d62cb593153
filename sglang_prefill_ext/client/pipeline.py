"""From records to answers: many at a time, in order, one bad record at nobody's cost."""

from __future__ import annotations

import codecs
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sglang_prefill_ext.client.records import Fields, Record, read_csv, read_jsonl
from sglang_prefill_ext.errors import PrefillExtError, ServerUnavailableError

Answer = Callable[[Fields], Fields]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the record at `line`: its fields with the answer, or the error."""

    line: int
    result: Fields | PrefillExtError


def answer_file(source: IO[bytes], output: IO[str], answer: Answer, concurrency: int) -> bool:
    """Answer every record of a file, write the answers as JSONL and errors to stderr.

    Returns:
        Whether no record failed.

    Raises:
        ServerUnavailableError: nobody answers; what was answered before is written.
    """
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("lines"), TimeElapsedColumn())
    failed = 0
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=_lines(source))
        for outcome in outcomes(_records(source), answer, concurrency):
            if isinstance(outcome.result, PrefillExtError):
                failed += 1
                said = f"line {outcome.line}: {outcome.result}"
                console.print(said, markup=False, highlight=False, soft_wrap=True)
            else:
                output.write(json.dumps(outcome.result) + "\n")
                output.flush()  # whatever ends the run later
            progress.update(task, completed=outcome.line)
    return not failed


def outcomes(records: Iterable[Record], answer: Answer, concurrency: int) -> Iterator[Outcome]:
    """Yield what becomes of each record, in order; holds a few records a thread at most."""
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
        return Outcome(record.line, answer(record.load()))
    except ServerUnavailableError:
        raise  # The records to come would wait as long, and fail as well.
    except PrefillExtError as error:
        return Outcome(record.line, error)


def _records(source: IO[bytes]) -> Iterator[Record]:
    """Records of a file, by its suffix; stdin has none."""
    if not str(getattr(source, "name", "")).endswith(".csv"):
        return read_jsonl(source)
    return read_csv(codecs.iterdecode(source, "utf-8-sig", errors="surrogateescape"))


def _lines(source: IO[bytes]) -> int | None:
    """Number of lines of a file; None for what can be read only once."""
    if not source.seekable():
        return None
    lines = sum(1 for _ in source)
    source.seek(0)
    return lines

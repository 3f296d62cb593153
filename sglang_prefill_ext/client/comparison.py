"""`sglang-prefill compare`: scores the records of a file on both paths of a server."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from sglang_prefill_ext.client.clients import PrefillClient
from sglang_prefill_ext.client.commands import (
    ApiKey,
    Concurrency,
    LabelIds,
    Source,
    Timeout,
    Url,
    interrupted_at_once,
)
from sglang_prefill_ext.client.exchange import DEFAULT_URL
from sglang_prefill_ext.client.explanation import explain
from sglang_prefill_ext.client.options import Options
from sglang_prefill_ext.client.records import Fields, Record, outcomes, records_of
from sglang_prefill_ext.client.score_records import item_scores, score_arguments
from sglang_prefill_ext.errors import PrefillExtError, RequestError

Scores = NDArray[np.float64]

MOST_ASKED_AGAIN = 20
"""Records whose answers differ too much are asked for once more, but no more than this."""


@dataclass(slots=True)
class Answers:
    """What one path answered.

    Attributes:
        scores: by the line of their record, see `item_scores`.
        refused: what was wrong with the other records.
        seconds: how long each answer took.
        wall_s: seconds for all records.
    """

    scores: dict[int, Scores] = field(default_factory=dict)
    refused: dict[int, PrefillExtError] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    wall_s: float = 0.0

    def figures(self) -> list[str]:
        """Items per second, and the median and 99th percentile of the latencies in ms, as text."""
        items_per_s = sum(map(len, self.scores.values())) / self.wall_s
        percentiles_s = np.percentile(self.seconds, [50, 99]).tolist() if self.seconds else []
        return [f"{items_per_s:,.0f}", *(f"{each * 1e3:.1f}" for each in percentiles_s)]


@dataclass(frozen=True, slots=True)
class Difference:
    """How far two answers to a record differ.

    Attributes:
        largest: of a score.
        rank_changes: pairs of items that stock separates by more than the tolerance, in the
            score of the first label, and that packed has the other way round.
    """

    largest: float
    rank_changes: int

    @staticmethod
    def between(packed: Scores, stock: Scores, tolerance: float) -> Difference:
        """Compare scores, ``[items, labels]`` each."""
        ours, theirs = packed[:, 0], stock[:, 0]
        changed = (theirs[:, None] - theirs > tolerance) & (ours[:, None] < ours)
        return Difference(float(np.abs(packed - stock).max(initial=0)), int(changed.sum()))

    def within(self, tolerance: float) -> bool:
        return self.largest <= tolerance and not self.rank_changes


def compare(
    source: Source = "-",  # type: ignore[assignment]  # typer opens it
    label_token_ids: LabelIds = None,
    tolerance: Annotated[float, typer.Option(min=0, help="Largest difference of a score.")] = 0.02,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    concurrency: Concurrency = 8,
    timeout: Timeout = None,
) -> None:
    """Score all records packed, then on SGLang's own path; compare answers and speed."""
    records = list(records_of(source))
    if not records:
        raise RequestError("There is no record. Give a file with at least one.")
    line, arguments = _first(records, label_token_ids)
    facts = explain(url, json.dumps(arguments).encode(), api_key=api_key)
    reason = f": {facts['reason']}" if facts["reason"] else ""
    typer.echo(f"Line {line} takes the {facts['path']} path{reason}")
    with interrupted_at_once(), PrefillClient(url, api_key=api_key) as client:
        asked = partial(_asked, client, label_token_ids, timeout)
        packed = asked(records, stock=False, concurrency=concurrency)
        stock = asked(records, stock=True, concurrency=concurrency)
        differences = _differences(packed, stock, tolerance)
        wrong = {line for line, found in differences.items() if not found.within(tolerance)}
        doubted = [record for record in records if record.line in wrong][:MOST_ASKED_AGAIN]
        again = asked(doubted, stock=True, concurrency=1)
    _show(packed, stock, differences, tolerance)
    if own := _differences(again, stock, tolerance).values():
        typer.echo(
            f"Asked again for {len(own)} of the {len(wrong)} records that differ too much, one by "
            f"one, SGLang's own path differs from itself by {max(x.largest for x in own):.1e}"
        )
    if wrong or not differences or packed.refused or stock.refused:
        raise typer.Exit(1)


def _first(records: Sequence[Record], labels: str | None) -> tuple[int, Fields]:
    """The line and the arguments of the first record that can be read.

    Raises:
        RequestError: what is wrong with the first one, if none can be read.
    """
    wrong = []
    for record in records:
        try:
            return record.line, score_arguments(record.load(), labels)
        except RequestError as error:
            wrong.append(error)
    raise wrong[0]


def _asked(
    client: PrefillClient,
    labels: str | None,
    timeout_s: float | None,
    records: Sequence[Record],
    *,
    stock: bool,
    concurrency: int,
) -> Answers:
    found, options = Answers(), Options(timeout_s=timeout_s, stock=stock)

    def answer(fields: Fields) -> Fields:
        arguments = score_arguments(fields, labels)
        begin_s = time.monotonic()
        scores = item_scores(client, arguments, options)
        found.seconds.append(time.monotonic() - begin_s)
        return {"scores": scores}

    begin_s = time.monotonic()
    for line, result in outcomes(records, answer, concurrency):
        if isinstance(result, PrefillExtError):
            found.refused[line] = result
        else:
            found.scores[line] = result["scores"]
    found.wall_s = time.monotonic() - begin_s
    return found


def _differences(packed: Answers, stock: Answers, tolerance: float) -> dict[int, Difference]:
    """Of the records that both answered, by their line."""
    return {
        line: Difference.between(scores, stock.scores[line], tolerance)
        for line, scores in packed.scores.items()
        if line in stock.scores
    }


def _show(
    packed: Answers, stock: Answers, differences: dict[int, Difference], tolerance: float
) -> None:
    table = Table("path", "items/s", "P50 ms", "P99 ms", box=box.SIMPLE)
    table.add_row("packed", *packed.figures())
    table.add_row("stock", *stock.figures())
    Console().print(table)
    refused = packed.refused | stock.refused
    for line, why in sorted(refused.items()):
        typer.echo(f"line {line}: {why}", err=True)
    if not differences:
        return
    line = max(differences, key=lambda each: differences[each].largest)
    largest, changes = differences[line].largest, sum(d.rank_changes for d in differences.values())
    typer.echo(f"Largest difference of a score: {largest:.1e}, in line {line}")
    typer.echo(f"Items over {tolerance:g} apart in another order: {changes} pairs")

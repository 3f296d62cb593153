"""`sglang-prefill score`, `rank`, `embed` and `classify`: records in, records with answers out."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from sglang_prefill_ext.client.clients import PrefillClient
from sglang_prefill_ext.client.exchange import DEFAULT_URL
from sglang_prefill_ext.client.options import Options
from sglang_prefill_ext.client.records import Fields, answer_file, field, label_ids
from sglang_prefill_ext.client.score_records import item_scores, score_arguments
from sglang_prefill_ext.errors import ConfigError, RequestError

Source = Annotated[
    typer.FileBinaryRead, typer.Argument(help="JSONL or .csv file with the records; - is stdin.")
]
Output = Annotated[
    typer.FileTextWrite, typer.Option(help="JSONL file to write the answers to; - is stdout.")
]
Url = Annotated[str, typer.Option(help="Address of the server.")]
ApiKey = Annotated[
    str | None, typer.Option(envvar="SGLANG_PREFILL_API_KEY", help="Key of the server.")
]
Concurrency = Annotated[int, typer.Option(min=1, help="Records under way at a time.")]
Timeout = Annotated[float | None, typer.Option(help="Most seconds for each record.")]


def _checked_labels(given: str | None) -> str | None:
    try:
        label_ids(given)
    except RequestError as error:
        raise typer.BadParameter(str(error)) from error
    return given


LabelIds = Annotated[
    str | None,
    typer.Option(
        callback=_checked_labels,
        help="Labels of records that have none, such as 1,2; a classifier needs none.",
    ),
]
FieldName = Annotated[
    str, typer.Option("--field", help="Field of a record that holds the text or token ids.")
]

Adapter = Annotated[str | None, typer.Option(help="Name of a LoRA adapter of the server.")]


def score(
    source: Source = "-",  # type: ignore[assignment]  # typer opens it
    output: Output = "-",  # type: ignore[assignment]
    label_token_ids: LabelIds = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    concurrency: Concurrency = 8,
    timeout: Timeout = None,
) -> None:
    """Score the items of each record after its query, and add scores."""

    def answer(client: PrefillClient, fields: Fields, options: Options) -> Fields:
        arguments = score_arguments(fields, label_token_ids)
        return fields | {"scores": item_scores(client, arguments, options).tolist()}

    _run(answer, source, output, url, api_key, concurrency, timeout)


def rank(
    source: Source = "-",  # type: ignore[assignment]
    output: Output = "-",  # type: ignore[assignment]
    label_token_ids: LabelIds = None,
    top: Annotated[int | None, typer.Option(min=1, help="Keep only this many items.")] = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    concurrency: Concurrency = 8,
    timeout: Timeout = None,
) -> None:
    """Sort the items of each record by the score of the first label or class."""

    def answer(client: PrefillClient, fields: Fields, options: Options) -> Fields:
        arguments = score_arguments(fields, label_token_ids)
        scores = item_scores(client, arguments, options)[:, 0]
        items = arguments["items"]
        best = np.argsort(-scores, kind="stable")[:top].tolist()
        ranked = [{"index": i, "score": float(scores[i]), "item": items[i]} for i in best]
        return fields | {"items": ranked}

    _run(answer, source, output, url, api_key, concurrency, timeout)


def embed(
    source: Source = "-",  # type: ignore[assignment]
    output: Output = "-",  # type: ignore[assignment]
    field_name: FieldName = "text",
    dimensions: Annotated[
        int | None, typer.Option(min=1, help="Length of the vectors, for Matryoshka models.")
    ] = None,
    adapter: Adapter = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    concurrency: Concurrency = 8,
    timeout: Timeout = None,
) -> None:
    """Embed the text of each record, and add embedding."""

    def answer(client: PrefillClient, fields: Fields, options: Options) -> Fields:
        prompts = [_prompt(fields, field_name)]
        vectors = client.embed(prompts, dimensions=dimensions, adapter=adapter, options=options)
        return fields | {"embedding": vectors[0].tolist()}

    _run(answer, source, output, url, api_key, concurrency, timeout)


def classify(
    source: Source = "-",  # type: ignore[assignment]
    output: Output = "-",  # type: ignore[assignment]
    field_name: FieldName = "text",
    adapter: Adapter = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    concurrency: Concurrency = 8,
    timeout: Timeout = None,
) -> None:
    """Classify the text of each record, and add logits."""

    def answer(client: PrefillClient, fields: Fields, options: Options) -> Fields:
        prompts = [_prompt(fields, field_name)]
        logits = client.classify(prompts, adapter=adapter, options=options)
        return fields | {"logits": logits[0].tolist()}

    _run(answer, source, output, url, api_key, concurrency, timeout)


def _prompt(fields: Fields, name: str) -> Any:
    return field(fields, name, "Name another with --field.")


COMMANDS = (score, rank, embed, classify)

_INTERRUPTED = 128 + signal.SIGINT


def _run(
    answer: Callable[[PrefillClient, Fields, Options], Fields],
    source: typer.FileBinaryRead,
    output: typer.FileTextWrite,
    url: str,
    api_key: str | None,
    concurrency: int,
    timeout: float | None,
) -> None:
    options = Options(timeout_s=timeout)
    _refuse_overwriting(source, output)
    with interrupted_at_once(), PrefillClient(url, api_key=api_key) as client:
        answered = answer_file(
            source, output, lambda fields: answer(client, fields, options), concurrency
        )
        if not answered:
            raise typer.Exit(1)


@contextmanager
def interrupted_at_once() -> Iterator[None]:
    """Let an interrupt end the process; what was written until then is kept.

    Threads that wait for a server cannot be interrupted, and an ordinary exit would wait for them.
    """
    try:
        yield
    except KeyboardInterrupt:
        os._exit(_INTERRUPTED)


def _refuse_overwriting(source: typer.FileBinaryRead, output: typer.FileTextWrite) -> None:
    """Refuse an output that is the input: opening it would empty it before it is read."""
    read, written = (Path(str(getattr(file, "name", ""))) for file in (source, output))
    if read.is_file() and written.is_file() and written.samefile(read):
        raise ConfigError(f"--output: {written} is the input. Choose another file.")

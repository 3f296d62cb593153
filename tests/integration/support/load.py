"""Keeps packed requests under way while a test does something else."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

from tests.integration.support.client import Client, Json, wait_until


@contextmanager
def steady_load(client: Client, body: Json, workers: int = 3) -> Iterator[list[Json]]:
    """Keep `workers` requests with the same body under way; all must be answered.

    Yields:
        The answers so far, at least one for each worker on entering; complete on leaving.
    """
    answers: list[Json] = []
    stop = Event()

    def keep_scoring() -> None:
        while not stop.is_set():
            answers.append(client.score(body))

    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(keep_scoring) for _ in range(workers)]
        try:
            wait_until(lambda: len(answers) >= workers)
            yield answers
        finally:
            stop.set()
    for future in futures:
        future.result()

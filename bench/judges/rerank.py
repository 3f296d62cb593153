"""Reranking as in MTEB: score the candidates of every query; trec_eval judges their order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import numpy as np

from bench.judges.opinion import Opinion
from bench.judges.tools import Tools
from sglang_prefill_ext.client import PrefillClient
from sglang_prefill_ext.modelmaker.catalogue import (
    MAX_RELEVANCE,
    NO_LABEL,
    YES_LABEL,
    Query,
    item_part,
    items,
    queries,
    query_part,
    relevance,
)

QUERIES = 30
CANDIDATES = 100
_MEASURES = ("nDCG@10", f"RR(rel={MAX_RELEVANCE})", "AP(rel=2)")


class RerankJudge:
    """The trained ranker scores the candidates of a query in one request to `/v1/score`."""

    preset = "ranker"
    flags: tuple[str, ...] = ()
    tolerance = 1e-5
    """Of a score, which is a probability."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self.name = f"{tools.version('ir-measures')}, {tools.version('pytrec-eval-terrier')}"

    def ask(self, base_url: str, model: Path, scratch: Path) -> Opinion:
        """Score all candidates and let trec_eval judge the order.

        Raises:
            PrefillExtError: the server failed, see `PrefillClient`.
            JudgeError: the tool failed.
        """
        scratch.mkdir()
        scores = []
        labels = _label_ids(base_url)
        with PrefillClient(base_url) as client:
            for query, candidates in cases():
                texts = [item_part(items()[number].text) for number in candidates]
                answer = client.score(query_part(query.text), texts, labels)
                scores.append(answer.scores[:, 0].tolist())
        qrels, run = scratch / "qrels", scratch / "run"
        qrels.write_text("".join(_qrels_lines()))
        run.write_text("".join(_run_lines(scores)))
        printed = self._tools.run("ir_measures", "--places", "9", qrels, run, *_MEASURES)
        return Opinion(len(scores), np.concatenate(scores), read_marks(printed))


def cases() -> Iterator[tuple[Query, list[int]]]:
    """Yield queries with the item numbers of their candidates: the query's category, and others."""
    rng = random.Random("rerank")
    for query in queries("test")[:QUERIES]:
        near = [n for n, item in enumerate(items()) if item.category == query.category]
        far = [n for n, item in enumerate(items()) if item.category != query.category]
        yield query, rng.sample(near + rng.sample(far, CANDIDATES - len(near)), CANDIDATES)


def read_marks(printed: str) -> dict[str, float]:
    """Read the lines of ir_measures: a measure, a tab, its mean over the queries."""
    marks = (line.split("\t") for line in printed.splitlines())
    return {measure: float(value) for measure, value in marks}


def _qrels_lines() -> Iterator[str]:
    for row, (query, candidates) in enumerate(cases()):
        for number in candidates:
            yield f"q{row} 0 d{number} {relevance(query, items()[number])}\n"


def _run_lines(scores: Sequence[Sequence[float]]) -> Iterator[str]:
    for row, ((_, candidates), of_query) in enumerate(zip(cases(), scores, strict=True)):
        for number, score in zip(candidates, of_query, strict=True):
            yield f"q{row} Q0 d{number} 0 {score!r} run\n"


def _label_ids(base_url: str) -> list[int]:
    """Ids of the two labels, as the server's tokenizer has them."""
    body = {"prompt": [YES_LABEL, NO_LABEL], "add_special_tokens": False}
    reply = httpx.post(f"{base_url}/tokenize", json=body, timeout=60.0)
    reply.raise_for_status()
    return [ids[0] for ids in reply.json()["tokens"]]

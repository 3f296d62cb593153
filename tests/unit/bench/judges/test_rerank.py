from __future__ import annotations

from bench.judges.rerank import CANDIDATES, QUERIES, cases, read_marks
from sglang_prefill_ext.modelmaker.catalogue import MAX_RELEVANCE, items, relevance


def test_the_same_cases_on_every_call() -> None:
    assert list(cases()) == list(cases())


def test_every_query_has_distinct_candidates_of_its_category_and_others() -> None:
    found = list(cases())
    assert len(found) == QUERIES
    for query, candidates in found:
        grades = [relevance(query, items()[number]) for number in candidates]
        assert len(set(candidates)) == CANDIDATES
        assert grades.count(0) >= CANDIDATES // 2
        assert grades.count(0) < CANDIDATES


def test_some_candidates_are_what_was_asked_for() -> None:
    best = [max(relevance(query, items()[n]) for n in numbers) for query, numbers in cases()]
    assert best.count(MAX_RELEVANCE) > QUERIES // 2


def test_reads_the_lines_of_ir_measures() -> None:
    assert read_marks("nDCG@10\t0.925\nRR\t1.0\n") == {"nDCG@10": 0.925, "RR": 1.0}

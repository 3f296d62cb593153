from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from sglang_prefill_ext.client.pipeline import outcomes
from sglang_prefill_ext.client.records import Fields, Record
from sglang_prefill_ext.errors import RequestError, ServerUnavailableError


def records(count: int, taken: list[int]) -> Iterator[Record]:
    for line in range(1, count + 1):
        taken.append(line)
        yield Record(line, lambda line=line: {"line": line})  # type: ignore[misc]


def test_order_is_kept_whoever_is_faster() -> None:
    def answer(fields: Fields) -> Fields:
        time.sleep(0.01 * (fields["line"] % 3 == 1))
        return fields | {"done": True}

    found = [(each.line, each.result) for each in outcomes(records(20, []), answer, 3)]
    assert found == [(line, {"line": line, "done": True}) for line in range(1, 21)]


def test_a_bad_record_costs_only_itself() -> None:
    def answer(fields: Fields) -> Fields:
        if fields["line"] == 2:
            raise RequestError("bad")
        return fields

    found = [each.result for each in outcomes(records(3, []), answer, 2)]
    assert isinstance(found[1], RequestError)
    assert [found[0], found[2]] == [{"line": 1}, {"line": 3}]


def test_few_records_are_held() -> None:
    taken: list[int] = []
    answers = outcomes(records(1000, taken), lambda fields: fields, 2)
    next(answers)
    assert len(taken) == 8
    answers.close()  # type: ignore[attr-defined]  # it is a generator


def test_a_server_that_is_gone_ends_the_run() -> None:
    taken: list[int] = []

    def answer(fields: Fields) -> Fields:
        if fields["line"] > 1:
            raise ServerUnavailableError("gone")
        return fields

    answers = outcomes(records(1000, taken), answer, 1)
    assert next(answers).result == {"line": 1}
    with pytest.raises(ServerUnavailableError, match="gone"):
        next(answers)
    assert len(taken) == 5

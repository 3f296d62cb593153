from __future__ import annotations

import csv
import io
import json
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.client.records import (
    Fields,
    Record,
    field,
    label_ids,
    outcomes,
    read_csv,
    read_jsonl,
)
from sglang_prefill_ext.errors import RequestError, ServerUnavailableError


def loaded(records: Iterable[Record]) -> list[tuple[int, Any]]:
    """The line numbers, each with its fields or its error."""
    found: list[tuple[int, Any]] = []
    for record in records:
        try:
            found.append((record.line, record.load()))
        except RequestError as error:
            found.append((record.line, str(error)))
    return found


def test_lines_of_json_each_stand_alone() -> None:
    lines = b'{"a": 1}\n\n  \n{"a": \n[1]\n\xff\n{"a": "\xc3\xa9"}'
    found = loaded(read_jsonl(io.BytesIO(lines)))
    assert [line for line, _ in found] == [1, 4, 5, 6, 7]
    assert found[0][1] == {"a": 1}
    assert found[1][1].startswith("not JSON: ")
    assert found[1][1].endswith(". Write one object per line.")
    assert found[2][1] == "not a JSON object. Write one object per line."
    assert found[3][1].startswith("not JSON: ")
    assert found[4][1] == {"a": "é"}


@given(st.lists(st.tuples(st.text(), st.lists(st.text()), st.lists(st.integers()))))
def test_csv_comes_back_as_it_was_written(rows: list[Any]) -> None:
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(["query", "items", "label_token_ids"])
    writer.writerows([query, json.dumps(items), json.dumps(ids)] for query, items, ids in rows)
    file.seek(0)
    wanted = [{"query": q, "items": items, "label_token_ids": ids} for q, items, ids in rows]
    assert [fields for _, fields in loaded(read_csv(file))] == wanted


def test_rows_of_csv_each_stand_alone() -> None:
    lines = 'query,items\n[1] q,one\nq,"[""a"",""b""]"\nq,[a\nq\nq,a,b\n"two\nlines",x\nq,\udcff\n'
    found = loaded(read_csv(io.StringIO(lines, newline="")))
    assert [line for line, _ in found] == [2, 3, 4, 5, 6, 8, 9]
    assert found[0][1] == {"query": "[1] q", "items": "one"}
    assert found[1][1] == {"query": "q", "items": ["a", "b"]}
    assert found[2][1].startswith("a list is not JSON: ")
    assert found[3][1] == found[4][1] == "the row has fewer or more cells than the header."
    assert found[5][1] == {"query": "two\nlines", "items": "x"}
    assert found[6][1].startswith("not UTF-8: ")


def test_a_cell_of_csv_may_be_as_long_as_a_line_of_json() -> None:
    items = json.dumps(["a" * 1000] * 500)
    file = io.StringIO(newline="")
    csv.writer(file).writerows([["items"], [items], ["b"]])
    file.seek(0)
    found = loaded(read_csv(file))
    assert [fields for _, fields in found] == [{"items": json.loads(items)}, {"items": "b"}]


def test_what_is_not_csv_ends_the_reading_but_not_what_was_read() -> None:
    found = loaded(read_csv(io.StringIO('text\ngood\n"open', newline="")))
    assert found[0] == (2, {"text": "good"})
    assert found[1][1].startswith("not CSV, reading ends here: ")


def test_label_ids_are_a_list_or_text() -> None:
    assert label_ids("1, 22") == [1, 22]
    assert label_ids([[1], [2]]) == [[1], [2]]


@pytest.mark.parametrize("text", ["yes", "", "1,", "1_0", "1.0", "\u0663", "9" * 5_000])
def test_what_is_no_list_of_label_ids_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match=r"label_token_ids: '.* Write e\.g\. 1,2"):
        label_ids(text)


def test_a_missing_field_is_named_beside_what_is_there() -> None:
    assert field({"a": ""}, "a") == ""
    with pytest.raises(RequestError, match=r"text: missing; the record has a, b\."):
        field({"a": 1, "b": 2}, "text")
    with pytest.raises(RequestError, match="has no field"):
        field({}, "text")


def records(count: int, taken: list[int]) -> Iterator[Record]:
    for line in range(1, count + 1):
        taken.append(line)
        yield Record(line, lambda line=line: {"line": line})  # type: ignore[misc]


def test_order_is_kept_whoever_is_faster() -> None:
    def answer(fields: Fields) -> Fields:
        time.sleep(0.01 * (fields["line"] % 3 == 1))
        return fields | {"done": True}

    found = list(outcomes(records(20, []), answer, 3))
    assert found == [(line, {"line": line, "done": True}) for line in range(1, 21)]


def test_a_bad_record_costs_only_itself() -> None:
    def answer(fields: Fields) -> Fields:
        if fields["line"] == 2:
            raise RequestError("bad")
        return fields

    found = [result for _, result in outcomes(records(3, []), answer, 2)]
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
    asked: list[int] = []
    workers: list[threading.Thread] = []
    ended = threading.Event()

    def answer(fields: Fields) -> Fields:
        asked.append(fields["line"])
        workers.append(threading.current_thread())
        if fields["line"] == 3:  # it may have begun by then
            ended.wait(60)
        if fields["line"] > 1:
            raise ServerUnavailableError("gone")
        return fields

    answers = outcomes(records(1000, taken), answer, 1)
    assert next(answers) == (1, {"line": 1})
    with pytest.raises(ServerUnavailableError, match="gone"):
        next(answers)
    assert len(taken) == 5
    ended.set()
    workers[0].join(60)
    assert asked in ([1, 2], [1, 2, 3])

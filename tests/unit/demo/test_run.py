from __future__ import annotations

from sglang_prefill_ext.demo import run
from sglang_prefill_ext.modelmaker import catalogue


def test_a_task_may_have_every_item_of_the_catalogue() -> None:
    everything = {item.text for item in catalogue.items()}
    query, items, grades = run._tasks(len(catalogue.items()))[0]
    assert query
    assert len(items) == len(grades) == 400
    assert {*items} == everything

from __future__ import annotations

import json
from pathlib import Path

from bench.judges.lm_eval import QUESTIONS, questions, read_output


def test_the_same_questions_on_every_call() -> None:
    assert list(questions()) == list(questions())


def test_both_kinds_of_question_and_every_answer_occur() -> None:
    choices = {len(question["choices"]) for question in questions()}
    answers = {(len(q["choices"]), q["answer"]) for q in questions()}
    assert choices == {2, 4}
    assert answers == {(2, 0), (2, 1), (4, 0), (4, 1), (4, 2), (4, 3)}
    assert QUESTIONS < len(list(questions())) <= 2 * QUESTIONS


def test_reads_what_lm_eval_wrote(tmp_path: Path) -> None:
    lines = [
        {"doc_id": 1, "resps": [[["-3.5", "False"]]]},
        {"doc_id": 0, "resps": [[["-1.0", "True"]], [["-2.0", "False"]]]},
    ]
    out = tmp_path / "model"
    out.mkdir()
    (out / "samples_catalogue_1.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    (out / "results_1.json").write_text(json.dumps({"results": {"catalogue": {"acc,none": 0.5}}}))
    opinion = read_output(tmp_path)
    assert opinion.numbers.tolist() == [-1.0, -2.0, -3.5]
    assert opinion.marks == {"accuracy": 0.5, "greedy choices": 1}
    assert opinion.requests == 3

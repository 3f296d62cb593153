"""EleutherAI's lm-eval: log-likelihoods of choices through `/v1/completions`, which echoes them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from bench.judges.opinion import Opinion
from bench.judges.tools import Tools
from sglang_prefill_ext.modelmaker.catalogue import (
    NO_LABEL,
    YES_LABEL,
    Item,
    Query,
    item_part,
    items,
    queries,
    query_part,
    relevance,
)

QUESTIONS = 40
"""Questions of each kind: whether an item is relevant, and which of four items is meant."""

_CHOICES = 4
_TASK = "catalogue"
_TASK_FILE = """\
task: {task}
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{data}"}}}}
test_split: test
output_type: multiple_choice
doc_to_text: text
doc_to_choice: choices
doc_to_target: answer
target_delimiter: ""
metric_list: [{{metric: acc}}]
metadata: {{version: 1}}
"""


class LmEvalJudge:
    """Sends every choice as one request with one prompt, as token ids."""

    preset = "ranker"
    flags: tuple[str, ...] = ()
    tolerance = 1e-4
    """Of a log-likelihood in nats, which is a sum over the tokens of a choice (up to about 40)."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self.name = tools.version("lm-eval")

    def ask(self, base_url: str, model: Path, scratch: Path) -> Opinion:
        """Run the task against a server.

        Raises:
            JudgeError: lm-eval failed.
        """
        scratch.mkdir()
        data = scratch / "catalogue.jsonl"
        data.write_text("".join(json.dumps(question) + "\n" for question in questions()))
        (scratch / "catalogue.yaml").write_text(_TASK_FILE.format(task=_TASK, data=data))
        arguments = {
            "model": model.name,
            "tokenizer": model,
            "base_url": f"{base_url}/v1/completions",
            "num_concurrent": 8,
        }
        self._tools.run(
            "lm_eval",
            "run",
            *("--model", "local-completions", "--tasks", _TASK, "--include_path", scratch),
            *("--model_args", ",".join(f"{key}={value}" for key, value in arguments.items())),
            *("--output_path", scratch / "out", "--log_samples"),
            cache=scratch / "cache",
        )
        return read_output(scratch / "out")


def questions() -> Iterator[dict[str, Any]]:
    """Yield the lines of the task's data, always the same: text, choices, and the right choice."""
    rng = random.Random("lm-eval")
    for query in queries("test")[:QUESTIONS]:
        fits = [item for item in items() if relevance(query, item) > 1]
        others = [item for item in items() if relevance(query, item) == 0]
        if not fits:
            continue
        yield _relevance_question(query, rng.choice(rng.choice((fits, others))))
        answer = rng.randrange(_CHOICES)
        choices = rng.sample(others, _CHOICES)
        choices[answer] = rng.choice(fits)
        yield {
            "text": f"{query_part(query.text)}Item:",
            "choices": [f" {item.text}" for item in choices],
            "answer": answer,
        }


def read_output(directory: Path) -> Opinion:
    """Read what lm-eval wrote: the log-likelihood of every choice, and the accuracy."""
    (samples,) = directory.rglob("samples_*.jsonl")
    (results,) = directory.rglob("results_*.json")
    lines = sorted(map(json.loads, samples.read_text().splitlines()), key=itemgetter("doc_id"))
    answers = [answer for line in lines for (answer,) in line["resps"]]
    numbers = np.array([float(logprob) for logprob, _ in answers])
    greedy = sum(str(is_greedy) == "True" for _, is_greedy in answers)
    accuracy = json.loads(results.read_text())["results"][_TASK]["acc,none"]
    return Opinion(len(numbers), numbers, {"accuracy": accuracy, "greedy choices": greedy})


def _relevance_question(query: Query, item: Item) -> dict[str, Any]:
    return {
        "text": query_part(query.text) + item_part(item.text),
        "choices": [YES_LABEL, NO_LABEL],
        "answer": int(relevance(query, item) == 0),
    }

"""Training of the `ranker`: does this item of the catalogue fit this query, yes or no?"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sglang_prefill_ext.modelmaker import catalogue
from sglang_prefill_ext.modelmaker.catalogue import Query, item_part, query_part, relevance
from sglang_prefill_ext.modelmaker.tokenizer import label_ids

STEPS = 900
BATCH = 64
LEARNING_RATE = 2e-3
WARM_UP = 0.1
SAME_CATEGORY = 0.6
"""Share of the training rows whose item is of the category that the query asks for."""

TARGETS = tuple(grade / catalogue.MAX_RELEVANCE for grade in range(catalogue.MAX_RELEVANCE + 1))
"""Wanted probability of "yes" for every grade of relevance."""

_REPORT_EVERY = 100


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    seed: int,
    *,
    steps: int = STEPS,
    progress: Callable[[str], None],
) -> None:
    """Teach a model to answer `YES_LABEL` or `NO_LABEL` after a prompt of the catalogue.

    Cross-entropy of the next token after the prompt against the two labels, weighted by
    `TARGETS`; nothing else is learnt. Only training queries are seen. Deterministic in
    `seed`: one thread, and no random state but its own.
    """
    rows = _rows(tokenizer, random.Random(seed))
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=steps, pct_start=WARM_UP
    )
    labels = list(label_ids(tokenizer))
    model.train()
    with _one_thread():
        for step in range(1, steps + 1):
            prompts, wanted = zip(*(next(rows) for _ in range(BATCH)), strict=True)
            log_probs = next_token_log_probs(model, prompts)[:, labels]
            yes = torch.tensor(wanted)
            loss = -(yes * log_probs[:, 0] + (1 - yes) * log_probs[:, 1]).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if step % _REPORT_EVERY == 0:
                progress(f"training step {step} of {steps}, loss {loss.item():.3f}")
    model.eval()


def _rows(
    tokenizer: PreTrainedTokenizerFast, rng: random.Random
) -> Iterator[tuple[list[int], float]]:
    """Endless training rows: prompt ids and wanted probability of "yes".

    Within the category every grade that occurs is equally likely, however few items have it.
    """
    queries, items = catalogue.queries("train"), catalogue.items()
    query_ids = tokenizer([query_part(query.text) for query in queries])["input_ids"]
    item_ids = tokenizer([item_part(item.text) for item in items])["input_ids"]
    while True:
        chosen = rng.randrange(len(queries))
        query = queries[chosen]
        if rng.random() < SAME_CATEGORY:
            item = rng.choice(rng.choice(_by_grade(query)))
        else:
            item = rng.randrange(len(items))
        # The parts are never merged by the tokenizer: one ends and the next starts a word.
        yield query_ids[chosen] + item_ids[item], TARGETS[relevance(query, items[item])]


def _by_grade(query: Query) -> list[list[int]]:
    """Positions of the items of the query's category, one list per grade that occurs."""
    grades: dict[int, list[int]] = defaultdict(list)
    for position, item in enumerate(catalogue.items()):
        if item.category == query.category:
            grades[relevance(query, item)].append(position)
    return list(grades.values())


def next_token_log_probs(model: PreTrainedModel, prompts: Sequence[list[int]]) -> torch.Tensor:
    """Natural log-probabilities after each prompt, fp32 `[prompts, vocabulary]`.

    Prompts are padded on the right, which a causal model does not see at earlier positions.
    """
    ids = pad_sequence([torch.tensor(prompt) for prompt in prompts], batch_first=True)
    last = torch.tensor([len(prompt) - 1 for prompt in prompts])
    hidden = model.model(ids, use_cache=False).last_hidden_state[torch.arange(len(prompts)), last]
    return cast("torch.Tensor", model.lm_head(hidden)).float().log_softmax(-1)


@contextmanager
def _one_thread() -> Iterator[None]:
    """The order of floating-point sums, and so the trained weights, depends on the threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
